// franz-go: idempotent unless told otherwise, transactions, both protocols of groups.
package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	. "onceflow/programs/playing"
)

var everywhere = context.Background()

func main() {
	scenarios := map[string]Scenario{
		"records": records, "idempotence": idempotence, "commit": commit, "abort": abort, "offsets": offsets,
		"fencing": fencing, "consumer protocol": consumerProtocol, "admin": admin,
		"group":     func(topic string) { group(topic) },
		"rebalance": func(topic string) { rebalance(topic) },
	}
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		scenarios[name] = func(topic string) { compressed(topic, codec) }
	}
	Play(scenarios)
}

func records(topic string) {
	producer := client()
	defer producer.Close()
	sent := time.UnixMilli(1_234_567_890_123)
	headers := []kgo.RecordHeader{{Key: "header", Value: []byte("text")}}
	full := &kgo.Record{Topic: topic, Key: []byte("key"), Value: []byte("value"), Headers: headers, Timestamp: sent}
	Must(producer.ProduceSync(everywhere, full, &kgo.Record{Topic: topic, Key: []byte("key")}).FirstErr())
	found := read(topic, 2, kgo.ReadCommitted())
	Check("record", []string{"key", "value"}, []string{string(found[0].Key), string(found[0].Value)})
	Check("timestamp", sent.UnixMilli(), found[0].Timestamp.UnixMilli())
	Check("headers", headers, found[0].Headers)
	Check("tombstone", true, found[1].Value == nil)
}

func compressed(topic string, codec kgo.CompressionCodec) {
	producer := client(kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(50*time.Millisecond))
	defer producer.Close()
	send(producer, topic, 0, 100)
	checkNumbers(read(topic, 100, kgo.ReadCommitted()), 0, 100)
}

func idempotence(topic string) {
	producer := client(kgo.ProducerBatchMaxBytes(1000))
	defer producer.Close()
	send(producer, topic, 0, 300)
	checkNumbers(read(topic, 300, kgo.ReadCommitted()), 0, 300)
}

// --- transactions

func transactional(name string) *kgo.Client { return client(kgo.TransactionalID(name)) }

func commit(topic string) {
	producer := transactional(topic)
	defer producer.Close()
	for first := 0; first < 30; first += 10 {
		Must(producer.BeginTransaction())
		send(producer, topic, first, 10)
		Must(producer.EndTransaction(everywhere, kgo.TryCommit))
	}
	checkNumbers(read(topic, 30, kgo.ReadCommitted()), 0, 30)
}

func abort(topic string) {
	producer := transactional(topic)
	defer producer.Close()
	Must(producer.BeginTransaction())
	send(producer, topic, 0, 10)
	Must(producer.EndTransaction(everywhere, kgo.TryAbort))
	Must(producer.BeginTransaction())
	send(producer, topic, 10, 10)
	Must(producer.EndTransaction(everywhere, kgo.TryCommit))
	checkNumbers(read(topic, 10, kgo.ReadCommitted()), 10, 10)
	checkNumbers(read(topic, 20, kgo.ReadUncommitted()), 0, 20)
}

// Offsets are the session's to send: of what was polled in the transaction.
func offsets(topic string) {
	producer := transactional(topic + "-first")
	Must(producer.BeginTransaction())
	send(producer, topic, 0, 10)
	Must(producer.EndTransaction(everywhere, kgo.TryCommit))
	producer.Close()
	session := Got(kgo.NewGroupTransactSession(options(kgo.TransactionalID(topic), kgo.ConsumerGroup(topic),
		kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), fromTheBeginning)...))
	defer session.Close()
	administrator := kadm.NewClient(session.Client())
	for number, wanted := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		Must(session.Begin())
		var found []*kgo.Record
		Until("ten records arrive", func() bool {
			ctx, cancel := context.WithTimeout(everywhere, 200*time.Millisecond)
			defer cancel()
			found = append(found, session.PollFetches(ctx).Records()...)
			return len(found) >= 10
		})
		checkNumbers(found, 0, 10)
		send(session.Client(), topic, 10+number, 1)
		committed := Got(session.End(everywhere, wanted))
		Check("committed", bool(wanted), committed)
		at, known := Got(administrator.FetchOffsets(everywhere, topic)).Lookup(topic, 0)
		Check("offset is known", bool(wanted), known)
		if known {
			Check("offset after the commit", int64(10), at.At)
		}
	}
}

func fencing(topic string) {
	older := transactional(topic)
	defer older.Close()
	Must(older.BeginTransaction())
	send(older, topic, 0, 5)
	newer := transactional(topic)
	defer newer.Close()
	Must(newer.BeginTransaction())
	send(newer, topic, 5, 5)
	Must(newer.EndTransaction(everywhere, kgo.TryCommit))
	refusal := older.EndTransaction(everywhere, kgo.TryCommit)
	fenced := errors.Is(refusal, kerr.ProducerFenced) || errors.Is(refusal, kerr.InvalidProducerEpoch)
	if !fenced {
		panic(refusal)
	}
	checkNumbers(read(topic, 5, kgo.ReadCommitted()), 5, 5)
}

// --- groups

var fromTheBeginning = kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())

// Member is a consumer that knows which partitions it has.
type Member struct {
	*kgo.Client
	lock     sync.Mutex
	assigned map[int32]bool
}

func member(name, topic string, more ...kgo.Opt) *Member {
	one := &Member{assigned: map[int32]bool{}}
	one.Client = client(append([]kgo.Opt{
		kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), fromTheBeginning,
		kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.OnPartitionsAssigned(one.changed(topic, true)), kgo.OnPartitionsRevoked(one.changed(topic, false)),
		kgo.OnPartitionsLost(one.changed(topic, false)),
	}, more...)...)
	return one
}

func (one *Member) changed(topic string, has bool) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		one.lock.Lock()
		defer one.lock.Unlock()
		for _, partition := range partitions[topic] {
			one.assigned[partition] = has
		}
	}
}

func (one *Member) partitions() (found []int32) {
	one.lock.Lock()
	defer one.lock.Unlock()
	for partition, has := range one.assigned {
		if has {
			found = append(found, partition)
		}
	}
	return found
}

func consumerProtocol(topic string) {
	group(topic, kgo.ServerSideBalancer())
	rebalance(topic, kgo.ServerSideBalancer())
}

func group(topic string, protocol ...kgo.Opt) {
	producer := client()
	defer producer.Close()
	send(producer, topic, 0, 15)
	first := member(topic, topic, protocol...)
	checkNumbers(consume(first.Client, 15), 0, 15)
	upTo := map[string]map[int32]kgo.EpochOffset{topic: {0: {Epoch: -1, Offset: 10}}}
	first.CommitOffsetsSync(everywhere, upTo, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, _ *kmsg.OffsetCommitResponse, problem error) {
		Must(problem)
	})
	first.Close()
	second := member(topic, topic, protocol...)
	defer second.Close()
	checkNumbers(consume(second.Client, 5), 10, 5)
}

func rebalance(topic string, protocol ...kgo.Opt) {
	name := topic + "-rebalance"
	first := member(name, topic, protocol...)
	defer first.Close()
	settle(2, first)
	second := member(name, topic, protocol...)
	settle(1, first, second)
	second.Close()
	settle(2, first)
}

func settle(each int, members ...*Member) {
	Until("the group has settled", func() bool {
		all := map[int32]bool{}
		for _, one := range members {
			ctx, cancel := context.WithTimeout(everywhere, 20*time.Millisecond)
			one.PollFetches(ctx)
			cancel()
			assigned := one.partitions()
			if len(assigned) != each {
				return false
			}
			for _, partition := range assigned {
				all[partition] = true
			}
		}
		return len(all) == each*len(members)
	})
}

// --- an administrator

func admin(topic string) {
	created := topic + "-created"
	one := client()
	defer one.Close()
	administrator := kadm.NewClient(one)
	retention := "60000"
	Must(Got(administrator.CreateTopic(everywhere, 1, 1, map[string]*string{"retention.ms": &retention}, created)).Err)
	described := Got(Got(administrator.DescribeTopicConfigs(everywhere, created)).On(created, nil))
	for _, setting := range described.Configs {
		if setting.Key == "retention.ms" {
			Check("setting", retention, *setting.Value)
		}
	}
	Must(Got(Got(administrator.UpdatePartitions(everywhere, 2, created)).On(created, nil)).Err)
	Until("the topic has grown", func() bool {
		return len(Got(administrator.ListTopics(everywhere, created))[created].Partitions) == 2
	})
	send(one, created, 0, 5)
	end, _ := Got(administrator.ListEndOffsets(everywhere, created)).Lookup(created, 0)
	Check("end", int64(5), end.Offset)
	Must(Got(administrator.DeleteTopic(everywhere, created)).Err)
	Until("the topic is gone", func() bool { return !Got(administrator.ListTopics(everywhere)).Has(created) })
}

// --- what is done with clients

func options(more ...kgo.Opt) []kgo.Opt {
	return append([]kgo.Opt{
		kgo.SeedBrokers(Bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RetryTimeout(Patience / 2),
	}, more...)
}

func client(more ...kgo.Opt) *kgo.Client { return Got(kgo.NewClient(options(more...)...)) }

func send(producer *kgo.Client, topic string, first, count int) {
	var wanted []*kgo.Record
	for _, value := range Numbers(first, count) {
		wanted = append(wanted, &kgo.Record{Topic: topic, Value: []byte(value)})
	}
	Must(producer.ProduceSync(everywhere, wanted...).FirstErr())
}

func read(topic string, count int, isolation kgo.IsolationLevel) []*kgo.Record {
	at := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}
	reader := client(kgo.ConsumePartitions(at), kgo.FetchIsolationLevel(isolation))
	defer reader.Close()
	return consume(reader, count)
}

func consume(reader *kgo.Client, count int) (found []*kgo.Record) {
	Until("records arrive", func() bool {
		ctx, cancel := context.WithTimeout(everywhere, 200*time.Millisecond)
		defer cancel()
		found = append(found, reader.PollFetches(ctx).Records()...)
		return len(found) >= count
	})
	return found
}

func checkNumbers(found []*kgo.Record, first, count int) {
	var values []string
	for _, each := range found {
		values = append(values, string(each.Value))
	}
	Check("values", Numbers(first, count), values)
}
