/*
 * A Kafka Streams application as anybody would write it: counts records per key, exactly once, in a state store with a changelog.
 *
 * java CountingApplication <bootstrap> <application id> <source topic> <counts topic> <state folder>
 *
 * Every change of a count is written to the counts topic (no cache holds changes back), as text.
 */

import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

public final class CountingApplication {
    public static void main(String[] args) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(args[2])
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withCachingDisabled())
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(args[3]);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(args));
        // A broker that restarts is no reason to end: the thread is replaced and goes on from the last commit.
        streams.setUncaughtExceptionHandler(error -> {
            System.err.println("replacing the thread that failed: " + error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> {
            System.out.println(now);
            System.out.flush();
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static Properties settings(String[] args) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 5_000);
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 2_000);
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 300);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        return settings;
    }
}
