package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	few     = 24
	largest = 4<<20 - 1024
)

// producing sends every kind that this client has, each on a topic of its own, all at once, for somebody else to read, and leaves in the
// file "places" a line per topic, number, queue id, queue offset and message id of what was acknowledged.
func producing(s *session) bool {
	kinds := map[string]scenario{
		"sharded": sharded, "zlib": zlibbed, "largest": largestLetter, "levels": levels, "namespace": inNamespace, "traced": traced,
		"namespace_transactions": namespaceTransactions,
	}
	maps.Copy(kinds, ways)
	for name, work := range scenarios {
		if strings.HasPrefix(name, "send_") {
			kinds[name] = work
		}
	}
	var printing sync.Mutex
	var running sync.WaitGroup
	good := true
	for name, work := range kinds {
		running.Add(1)
		go func() {
			defer running.Done()
			result := run(name, work, s)
			line, _ := json.Marshal(result)
			printing.Lock()
			defer printing.Unlock()
			fmt.Println(string(line))
			good = good && result.OK
		}()
	}
	running.Wait()
	var places strings.Builder
	for _, l := range s.done {
		for n, result := range l.results {
			fmt.Fprintf(&places, "%s\t%d\t%d\t%d\t%s\n", l.topic, n, result.MessageQueue.QueueId, result.QueueOffset, result.MsgID)
		}
	}
	return os.WriteFile("places", []byte(places.String()), 0o644) == nil && good
}

// sendAs sends letters with a producer of their own.
func (s *session) sendAs(l *letters, options ...producer.Option) (string, error) {
	p, err := s.producer(l.topic, options...)
	if err != nil {
		return "", err
	}
	if err = s.send(p, l, 0, len(l.sent)); err != nil {
		return "", err
	}
	s.remember(l)
	return fmt.Sprintf("%d messages", len(l.sent)), p.Shutdown()
}

// sharded: by the hash of a key, of which there are five: what has an equal one is in one queue, in order.
func sharded(s *session, topic string) (string, error) {
	l := newLetters(topic, s.count)
	for n, message := range l.sent {
		key := fmt.Sprintf("order %d", n%5)
		message.WithProperty("order", key)
		message.WithShardingKey(key)
	}
	return s.sendAs(l, producer.WithQueueSelector(producer.NewHashQueueSelector()))
}

func zlibbed(s *session, topic string) (string, error) {
	l := newLetters(topic, 0)
	for n := range few {
		l.add([]byte(strings.Repeat(fmt.Sprintf("compressible %d ", n), 500+n)))
	}
	return s.sendAs(l, producer.WithCompressLevel(9))
}

func largestLetter(s *session, topic string) (string, error) {
	l := newLetters(topic, 0)
	body := make([]byte, largest)
	for i := range body {
		body[i] = byte(i*31 + i>>8)
	}
	l.add(body)
	return s.sendAs(l, producer.WithCompressMsgBodyOverHowmuch(5<<20))
}

func levelled(topic string) *letters {
	l := newLetters(topic, few)
	for n, message := range l.sent {
		if n%4 != 0 {
			message.WithDelayTimeLevel(n % 4)
		}
	}
	return l
}

func levels(s *session, topic string) (string, error) {
	return s.sendAs(levelled(topic))
}

func inNamespace(s *session, topic string) (string, error) {
	return s.sendAs(newLetters(topic, few), producer.WithNamespace(s.prefix+"-space"))
}

// traced: the client's dispatcher sends its records a few seconds later, and nothing tells when it has: each is looked for.
func traced(s *session, topic string) (string, error) {
	p, err := s.producer(topic, producer.WithTrace(&primitive.TraceConfig{
		GroupName: topic + "-traces", Access: primitive.Local, NamesrvAddrs: []string{s.namesrv},
		Resolver: primitive.NewPassthroughResolver([]string{s.namesrv}),
	}))
	if err != nil {
		return "", err
	}
	l := newLetters(topic, few)
	for _, message := range l.sent {
		result, err := p.SendSync(patiently(), message)
		if err != nil {
			return "", err
		}
		if err = l.acknowledged(message, result); err != nil {
			return "", err
		}
	}
	s.remember(l)
	for _, result := range l.results {
		broker, err := brokerOf(result.OffsetMsgID)
		if err != nil {
			return "", err
		}
		if err = eventually("trace of "+result.MsgID, func() bool { return indexed(broker, "RMQ_SYS_TRACE_TOPIC", result.MsgID) }); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d messages", few), p.Shutdown()
}
