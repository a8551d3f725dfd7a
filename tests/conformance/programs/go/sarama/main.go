// Sarama, told to speak as to Kafka 4.0.
package main

import (
	"context"
	"sync"
	"time"

	"github.com/IBM/sarama"

	. "onceflow/programs/playing"
)

var everywhere = context.Background()

func main() {
	scenarios := map[string]Scenario{
		"records": records, "idempotence": idempotence, "commit": commit, "abort": abort, "offsets": offsets,
		"fencing": fencing, "group": group, "rebalance": rebalance, "admin": admin,
	}
	for name, codec := range map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	} {
		scenarios[name] = func(topic string) {
			sender := producer(func(settings *sarama.Config) {
				settings.Producer.Compression = codec
				settings.Producer.Flush.Frequency = 50 * time.Millisecond
			})
			defer sender.Close()
			send(sender, topic, 0, 100)
			checkNumbers(read(topic, 100, sarama.ReadCommitted), 0, 100)
		}
	}
	Play(scenarios)
}

func records(topic string) {
	sent := time.UnixMilli(1_234_567_890_123)
	sender := producer(func(*sarama.Config) {})
	defer sender.Close()
	header := sarama.RecordHeader{Key: []byte("header"), Value: []byte("text")}
	key := sarama.StringEncoder("key")
	Must(sender.SendMessages([]*sarama.ProducerMessage{
		{Topic: topic, Key: key, Value: sarama.StringEncoder("value"), Headers: []sarama.RecordHeader{header}, Timestamp: sent},
		{Topic: topic, Key: key},
	}))
	found := read(topic, 2, sarama.ReadCommitted)
	Check("record", []string{"key", "value"}, []string{string(found[0].Key), string(found[0].Value)})
	Check("timestamp", sent.UnixMilli(), found[0].Timestamp.UnixMilli())
	Check("headers", header, *found[0].Headers[0])
	Check("tombstone", true, found[1].Value == nil)
}

func idempotence(topic string) {
	sender := producer(func(settings *sarama.Config) {
		idempotent(settings)
		settings.Producer.Flush.MaxMessages = 10
	})
	defer sender.Close()
	send(sender, topic, 0, 300)
	checkNumbers(read(topic, 300, sarama.ReadCommitted), 0, 300)
}

// --- transactions

func idempotent(settings *sarama.Config) {
	settings.Producer.Idempotent = true
	settings.Net.MaxOpenRequests = 1
}

func transactional(name string) sarama.SyncProducer {
	return producer(func(settings *sarama.Config) {
		idempotent(settings)
		settings.Producer.Transaction.ID = name
	})
}

func commit(topic string) {
	sender := transactional(topic)
	defer sender.Close()
	for first := 0; first < 30; first += 10 {
		Must(sender.BeginTxn())
		send(sender, topic, first, 10)
		Must(sender.CommitTxn())
	}
	checkNumbers(read(topic, 30, sarama.ReadCommitted), 0, 30)
}

func abort(topic string) {
	sender := transactional(topic)
	defer sender.Close()
	Must(sender.BeginTxn())
	send(sender, topic, 0, 10)
	Must(sender.AbortTxn())
	Must(sender.BeginTxn())
	send(sender, topic, 10, 10)
	Must(sender.CommitTxn())
	checkNumbers(read(topic, 10, sarama.ReadCommitted), 10, 10)
	checkNumbers(read(topic, 20, sarama.ReadUncommitted), 0, 20)
}

func offsets(topic string) {
	sender := transactional(topic)
	defer sender.Close()
	administrator := Got(sarama.NewClusterAdmin([]string{Bootstrap}, configuration()))
	defer administrator.Close()
	Must(sender.BeginTxn())
	send(sender, topic, 0, 10)
	Must(sender.CommitTxn())
	for number, end := range []func() error{sender.AbortTxn, sender.CommitTxn} {
		Must(sender.BeginTxn())
		send(sender, topic, 10+number, 1)
		at := &sarama.PartitionOffsetMetadata{Partition: 0, Offset: int64(7 + 3*number)}
		Must(sender.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{topic: {at}}, topic))
		Must(end())
		found := Got(administrator.ListConsumerGroupOffsets(topic, map[string][]int32{topic: {0}}))
		Check("offset", []int64{-1, 10}[number], found.GetBlock(topic, 0).Offset)
	}
}

func fencing(topic string) {
	older := transactional(topic)
	Must(older.BeginTxn())
	send(older, topic, 0, 5)
	newer := transactional(topic)
	defer newer.Close()
	Must(newer.BeginTxn())
	send(newer, topic, 5, 5)
	Must(newer.CommitTxn())
	if older.CommitTxn() == nil {
		panic("the older producer was not fenced")
	}
	Check("fatal", true, older.TxnStatus()&sarama.ProducerTxnFlagFatalError != 0)
	checkNumbers(read(topic, 5, sarama.ReadCommitted), 5, 5)
}

// --- groups

// Member is one that polls in the background, as they all do here.
type Member struct {
	group    sarama.ConsumerGroup
	lock     sync.Mutex
	assigned int
	found    []*sarama.ConsumerMessage
	commitAt int64
}

func member(name, topic string, commitAt int64) *Member {
	settings := configuration()
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest
	settings.Consumer.Offsets.AutoCommit.Enable = false
	settings.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	settings.Consumer.MaxWaitTime = 200 * time.Millisecond
	one := &Member{group: Got(sarama.NewConsumerGroup([]string{Bootstrap}, name, settings)), commitAt: commitAt}
	go func() {
		for one.group.Consume(everywhere, []string{topic}, one) == nil {
		}
	}()
	return one
}

func (one *Member) Setup(session sarama.ConsumerGroupSession) error {
	one.lock.Lock()
	defer one.lock.Unlock()
	one.assigned = 0
	for _, partitions := range session.Claims() {
		one.assigned += len(partitions)
	}
	return nil
}

func (one *Member) Cleanup(sarama.ConsumerGroupSession) error {
	one.lock.Lock()
	defer one.lock.Unlock()
	one.assigned = 0
	return nil
}

func (one *Member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		if message.Offset < one.commitAt {
			session.MarkMessage(message, "")
			session.Commit()
		}
		one.lock.Lock()
		one.found = append(one.found, message)
		one.lock.Unlock()
	}
	return nil
}

func (one *Member) has(partitions int) bool {
	one.lock.Lock()
	defer one.lock.Unlock()
	return one.assigned == partitions
}

func (one *Member) consumed(count int) []*sarama.ConsumerMessage {
	Until("records arrive", func() bool {
		one.lock.Lock()
		defer one.lock.Unlock()
		return len(one.found) >= count
	})
	return one.found
}

func group(topic string) {
	sender := producer(func(*sarama.Config) {})
	defer sender.Close()
	send(sender, topic, 0, 15)
	first := member(topic, topic, 10)
	checkNumbers(first.consumed(15), 0, 15)
	Must(first.group.Close())
	second := member(topic, topic, 0)
	checkNumbers(second.consumed(5), 10, 5)
	Must(second.group.Close())
}

func rebalance(topic string) {
	name := topic + "-rebalance"
	first := member(name, topic, 0)
	Until("the first has both", func() bool { return first.has(2) })
	second := member(name, topic, 0)
	Until("each has one", func() bool { return first.has(1) && second.has(1) })
	Must(second.group.Close())
	Until("the first has both again", func() bool { return first.has(2) })
	Must(first.group.Close())
}

// --- an administrator

func admin(topic string) {
	created := topic + "-created"
	administrator := Got(sarama.NewClusterAdmin([]string{Bootstrap}, configuration()))
	defer administrator.Close()
	retention := "60000"
	detail := &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &retention}}
	Must(administrator.CreateTopic(created, detail, false))
	Until("the topic is there", func() bool { return partitions(administrator, created) == 1 })
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: created, ConfigNames: []string{"retention.ms"}}
	Check("setting", retention, Got(administrator.DescribeConfig(resource))[0].Value)
	Must(administrator.CreatePartitions(created, 2, nil, false))
	Until("the topic has grown", func() bool { return partitions(administrator, created) == 2 })
	sender := producer(func(*sarama.Config) {})
	defer sender.Close()
	send(sender, created, 0, 5)
	client := Got(sarama.NewClient([]string{Bootstrap}, configuration()))
	defer client.Close()
	Check("end", int64(5), Got(client.GetOffset(created, 0, sarama.OffsetNewest)))
	Must(administrator.DeleteTopic(created))
}

func partitions(administrator sarama.ClusterAdmin, topic string) int {
	return len(Got(administrator.DescribeTopics([]string{topic}))[0].Partitions)
}

// --- what is done with clients

func configuration() *sarama.Config {
	settings := sarama.NewConfig()
	settings.Version = sarama.V4_0_0_0
	settings.Producer.RequiredAcks = sarama.WaitForAll
	settings.Producer.Return.Successes = true
	settings.Producer.Partitioner = sarama.NewManualPartitioner
	return settings
}

func producer(change func(*sarama.Config)) sarama.SyncProducer {
	settings := configuration()
	change(settings)
	return Got(sarama.NewSyncProducer([]string{Bootstrap}, settings))
}

func send(sender sarama.SyncProducer, topic string, first, count int) {
	var messages []*sarama.ProducerMessage
	for _, value := range Numbers(first, count) {
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
	}
	Must(sender.SendMessages(messages))
}

func read(topic string, count int, isolation sarama.IsolationLevel) (found []*sarama.ConsumerMessage) {
	settings := configuration()
	settings.Consumer.IsolationLevel = isolation
	settings.Consumer.MaxWaitTime = 200 * time.Millisecond
	reader := Got(sarama.NewConsumer([]string{Bootstrap}, settings))
	defer reader.Close()
	partition := Got(reader.ConsumePartition(topic, 0, sarama.OffsetOldest))
	defer partition.Close()
	deadline := time.After(Patience)
	for len(found) < count {
		select {
		case message := <-partition.Messages():
			found = append(found, message)
		case <-deadline:
			panic("the records do not arrive")
		}
	}
	return found
}

func checkNumbers(found []*sarama.ConsumerMessage, first, count int) {
	var values []string
	for _, each := range found {
		values = append(values, string(each.Value))
	}
	Check("values", Numbers(first, count), values)
}
