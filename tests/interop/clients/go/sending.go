package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func (s *session) producer(topic string, options ...producer.Option) (rocketmq.Producer, error) {
	options = append([]producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		producer.WithGroupName(topic + "-producer"),
		producer.WithInstanceName(topic + "-producer"),
		producer.WithRetry(2),
	}, options...)
	p, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	return p, p.Start()
}

func (s *session) send(p rocketmq.Producer, l *letters, from, to int) error {
	for _, message := range l.sent[from:to] {
		result, err := p.SendSync(context.Background(), message)
		if err != nil {
			return err
		}
		if err = l.acknowledged(message, result); err != nil {
			return err
		}
	}
	return nil
}

// readAll pulls every queue of a topic from offset 0, one held pull per queue, until `wanted` messages came; then the
// queues' ends must add up to just that number.
func (s *session) readAll(topic string, wanted int) ([]*primitive.MessageExt, error) {
	queues, err := s.queues(topic)
	if err != nil {
		return nil, err
	}
	reader, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{s.namesrv}),
		consumer.WithGroupName(topic+"-reader"),
		consumer.WithInstance(topic+"-reader"),
	)
	if err != nil {
		return nil, err
	}
	if err = reader.Subscribe(topic, consumer.MessageSelector{}); err != nil {
		return nil, err
	}
	if err = reader.Start(); err != nil {
		return nil, err
	}
	type arrival struct {
		queue  int
		result *primitive.PullResult
		err    error
	}
	arrivals := make(chan arrival, 1000)
	for _, queue := range queues {
		go func() {
			for offset := int64(0); ; {
				result, err := reader.PullFrom(context.Background(), queue, offset, 32)
				arrivals <- arrival{queue.QueueId, result, err}
				if err != nil {
					return
				}
				offset = result.NextBeginOffset
			}
		}()
	}
	var all []*primitive.MessageExt
	ends := map[int]int64{}
	for timeout := time.After(patience); len(all) < wanted; {
		select {
		case a := <-arrivals:
			if a.err != nil {
				return nil, a.err
			}
			all = append(all, a.result.GetMessageExts()...)
			ends[a.queue] = a.result.MaxOffset
		case <-timeout:
			return nil, fmt.Errorf("%s: %d of %d messages after %v", topic, len(all), wanted, patience)
		}
	}
	total := int64(0)
	for _, end := range ends {
		total += end
	}
	if total != int64(wanted) {
		return nil, fmt.Errorf("%s: queues end at %v, wanted %d messages", topic, ends, wanted)
	}
	return all, nil
}

func (s *session) queues(topic string) ([]*primitive.MessageQueue, error) {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{s.namesrv})))
	if err != nil {
		return nil, err
	}
	return a.FetchPublishMessageQueues(context.Background(), topic)
}

func (s *session) compare(l *letters) (string, error) {
	received, err := s.readAll(l.topic, len(l.sent))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d messages", len(received)), l.check(l.sent, received, true)
}

func sendSync(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, s.count)
	if err = s.send(p, l, 0, s.count); err != nil {
		return "", err
	}
	return s.compare(l)
}

func sendAsync(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, s.count)
	done := make(chan error, s.count)
	for _, message := range l.sent {
		err = p.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			if err == nil {
				err = l.acknowledged(message, result)
			}
			done <- err
		}, message)
		if err != nil {
			return "", err
		}
	}
	for range l.sent {
		if err = <-done; err != nil {
			return "", err
		}
	}
	return s.compare(l)
}

func sendOneway(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, s.count)
	if err = s.send(p, l, 0, 1); err != nil { // so that the topic has a route to read by
		return "", err
	}
	for _, message := range l.sent[1:] {
		if err = p.SendOneWay(context.Background(), message); err != nil {
			return "", err
		}
	}
	return s.compare(l)
}

func sendBatch(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, s.count)
	for from := 0; from < s.count; from += 16 {
		result, err := p.SendSync(context.Background(), l.sent[from:min(from+16, s.count)]...)
		if err != nil {
			return "", err
		}
		if result.Status != primitive.SendOK {
			return "", fmt.Errorf("batch: %v", result.Status)
		}
	}
	return s.compare(l)
}

func sendToQueue(s *session, topic string) (string, error) {
	p, err := s.producer(topic, producer.WithQueueSelector(producer.NewManualQueueSelector()))
	if err != nil {
		return "", err
	}
	first, err := s.producer(topic + "-first")
	if err != nil {
		return "", err
	}
	l := newLetters(topic, s.count)
	if err = s.send(first, l, 0, 1); err != nil {
		return "", err
	}
	queues, err := s.queues(topic)
	if err != nil {
		return "", err
	}
	if len(queues) != 4 {
		return "", fmt.Errorf("%d queues", len(queues))
	}
	for i, message := range l.sent[1:] {
		message.Queue = queues[i%3]
		result, err := p.SendSync(context.Background(), message)
		if err != nil {
			return "", err
		}
		if result.MessageQueue.QueueId != message.Queue.QueueId {
			return "", fmt.Errorf("sent to %v, wanted %v", result.MessageQueue, message.Queue)
		}
		if err = l.acknowledged(message, result); err != nil {
			return "", err
		}
	}
	return s.compare(l)
}

func sendLarge(s *session, topic string) (string, error) {
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	l := newLetters(topic, 0)
	l.add([]byte(strings.Repeat("compressible ", 500)))
	l.add([]byte(strings.Repeat("compressible ", 80_000)))
	l.add(noise(5_000, 1))
	l.add(noise(1<<20, 2))
	l.add(noise(3<<20, 3))
	l.add([]byte{0})
	if err = s.send(p, l, 0, len(l.sent)); err != nil {
		return "", err
	}
	return s.compare(l)
}

// sendSigned: AccessKey and Signature beside the fields of each request, ignored by a broker without access control.
func sendSigned(s *session, topic string) (string, error) {
	p, err := s.producer(topic, producer.WithCredentials(primitive.Credentials{AccessKey: "nobody", SecretKey: "nothing"}))
	if err != nil {
		return "", err
	}
	l := newLetters(topic, 8)
	if err = s.send(p, l, 0, 8); err != nil {
		return "", err
	}
	return s.compare(l)
}

func adminTopic(s *session, topic string) (string, error) {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{s.namesrv})))
	if err != nil {
		return "", err
	}
	p, err := s.producer(topic)
	if err != nil {
		return "", err
	}
	first := newLetters(topic+"-address", 1)
	if err = s.send(p, first, 0, 1); err != nil {
		return "", err
	}
	broker := strings.Join(strings.Split(brokerAddress(s, topic+"-address"), "/"), "")
	err = a.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(broker),
		admin.WithReadQueueNums(3), admin.WithWriteQueueNums(3))
	if err != nil {
		return "", err
	}
	var queues []*primitive.MessageQueue
	if err = eventually("route of the new topic", func() bool {
		queues, err = s.queues(topic)
		return err == nil
	}); err != nil {
		return "", err
	}
	if len(queues) != 3 {
		return "", fmt.Errorf("%d queues", len(queues))
	}
	list, err := a.FetchAllTopicList(context.Background())
	if err != nil {
		return "", err
	}
	if !strings.Contains(" "+strings.Join(list.TopicList, " ")+" ", " "+topic+" ") {
		return "", fmt.Errorf("%s is not in %v", topic, list.TopicList)
	}
	l := newLetters(topic, 9)
	if err = s.send(p, l, 0, 9); err != nil {
		return "", err
	}
	return s.compare(l)
}

// brokerAddress: the Go client tells it nowhere but in the store host of a received message.
func brokerAddress(s *session, topic string) string {
	received, err := s.readAll(topic, 1)
	if err != nil {
		panic(err)
	}
	return received[0].StoreHost
}
