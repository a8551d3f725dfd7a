// segmentio/kafka-go, which has neither idempotence nor transactions. It asks with the first version of each request
// that it knows.
package main

import (
	"context"
	"net"
	"time"

	"github.com/segmentio/kafka-go"

	. "onceflow/programs/playing"
)

var everywhere = context.Background()

func main() {
	scenarios := map[string]Scenario{"records": records, "group": group, "rebalance": rebalance, "admin": admin}
	for name, codec := range map[string]kafka.Compression{
		"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
	} {
		scenarios[name] = func(topic string) {
			send(topic, 0, 100, codec)
			checkNumbers(read(topic, 100), 0, 100)
		}
	}
	Play(scenarios)
}

func records(topic string) {
	sent := time.UnixMilli(1_234_567_890_123)
	headers := []kafka.Header{{Key: "header", Value: []byte("text")}}
	full := kafka.Message{Key: []byte("key"), Value: []byte("value"), Headers: headers, Time: sent}
	write(topic, 0, full, kafka.Message{Key: []byte("key")})
	found := read(topic, 2)
	Check("record", []string{"key", "value"}, []string{string(found[0].Key), string(found[0].Value)})
	Check("timestamp", sent.UnixMilli(), found[0].Time.UnixMilli())
	Check("headers", headers, found[0].Headers)
	Check("tombstone", 0, len(found[1].Value))
}

// --- groups

func member(name, topic string) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{Bootstrap}, GroupID: name, Topic: topic, StartOffset: kafka.FirstOffset,
		HeartbeatInterval: 200 * time.Millisecond, MaxWait: 200 * time.Millisecond,
	})
}

func group(topic string) {
	send(topic, 0, 15, 0)
	first := member(topic, topic)
	found := consume(first, 15)
	checkNumbers(found, 0, 15)
	Must(first.CommitMessages(everywhere, found[9]))
	Must(first.Close())
	second := member(topic, topic)
	defer second.Close()
	checkNumbers(consume(second, 5), 10, 5)
}

// The reader does not show its partitions; a member of a group does.
func rebalance(topic string) {
	first := join(topic)
	Check("partitions alone", 2, len(assigned(first, topic)))
	second := join(topic)
	Until("each has one", func() bool {
		others := make(chan int)
		go func() { others <- len(assigned(second, topic)) }()
		mine := len(assigned(first, topic))
		return mine == 1 && <-others == 1
	})
	Must(second.Close())
	Until("the first has both again", func() bool { return len(assigned(first, topic)) == 2 })
	Must(first.Close())
}

func join(topic string) *kafka.ConsumerGroup {
	return Got(kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: topic, Brokers: []string{Bootstrap}, Topics: []string{topic}, HeartbeatInterval: 200 * time.Millisecond,
	}))
}

// Each generation is a new assignment, after the one before it has ended.
func assigned(one *kafka.ConsumerGroup, topic string) []kafka.PartitionAssignment {
	ctx, cancel := context.WithTimeout(everywhere, Patience)
	defer cancel()
	return Got(one.Next(ctx)).Assignments[topic]
}

// --- an administrator

func admin(topic string) {
	created := topic + "-created"
	administrator := &kafka.Client{Addr: address()}
	config := kafka.TopicConfig{Topic: created, NumPartitions: 1, ReplicationFactor: 1,
		ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "60000"}}}
	answer := Got(administrator.CreateTopics(everywhere, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{config}}))
	Must(answer.Errors[created])
	Until("the new topic is there", func() bool { return partitions(administrator, created) == 1 })
	send(created, 0, 5, 0)
	asked := map[string][]kafka.OffsetRequest{created: {kafka.LastOffsetOf(0)}}
	ends := Got(administrator.ListOffsets(everywhere, &kafka.ListOffsetsRequest{Topics: asked}))
	Check("end", int64(5), ends.Topics[created][0].LastOffset)
	more := kafka.TopicPartitionsConfig{Name: created, Count: 2}
	grown := Got(administrator.CreatePartitions(everywhere,
		&kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{more}}))
	Must(grown.Errors[created])
	Until("the topic has grown", func() bool { return partitions(administrator, created) == 2 })
	gone := Got(administrator.DeleteTopics(everywhere, &kafka.DeleteTopicsRequest{Topics: []string{created}}))
	Must(gone.Errors[created])
}

func partitions(administrator *kafka.Client, topic string) int {
	found := Got(administrator.Metadata(everywhere, &kafka.MetadataRequest{Topics: []string{topic}}))
	return len(found.Topics[0].Partitions)
}

// --- what is done with clients

func address() net.Addr { return kafka.TCP(Bootstrap) }

func write(topic string, codec kafka.Compression, messages ...kafka.Message) {
	first := kafka.BalancerFunc(func(kafka.Message, ...int) int { return 0 })
	writer := &kafka.Writer{Addr: address(), Topic: topic, Balancer: first, Compression: codec,
		RequiredAcks: kafka.RequireAll, BatchTimeout: 50 * time.Millisecond}
	Must(writer.WriteMessages(everywhere, messages...))
	Must(writer.Close())
}

func send(topic string, first, count int, codec kafka.Compression) {
	var messages []kafka.Message
	for _, value := range Numbers(first, count) {
		messages = append(messages, kafka.Message{Value: []byte(value)})
	}
	write(topic, codec, messages...)
}

func read(topic string, count int) []kafka.Message {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{Bootstrap}, Topic: topic, MaxWait: 200 * time.Millisecond, IsolationLevel: kafka.ReadCommitted,
	})
	defer reader.Close()
	return consume(reader, count)
}

func consume(reader *kafka.Reader, count int) (found []kafka.Message) {
	ctx, cancel := context.WithTimeout(everywhere, Patience)
	defer cancel()
	for len(found) < count {
		found = append(found, Got(reader.FetchMessage(ctx)))
	}
	return found
}

func checkNumbers(found []kafka.Message, first, count int) {
	var values []string
	for _, each := range found {
		values = append(values, string(each.Value))
	}
	Check("values", Numbers(first, count), values)
}
