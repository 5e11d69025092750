package main

import (
	"bytes"
	"fmt"
	"math/rand"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

var tags = []string{"red", "green", "blue"}

const text = "plain é 漢字 🚀 \"quoted\" \\ \n\t"

// letters is what one scenario sends, and the comparison of what came back with it: every message by its number (a user
// property), its body, tags, keys, properties, and, where the send result told them, its queue and offset.
type letters struct {
	topic    string
	sent     []*primitive.Message
	mutex    sync.Mutex
	results  map[int]*primitive.SendResult
	again    map[int]bool // a send of it failed, which says nothing of whether it was stored: it may be there more than once
	failures int
}

func newLetters(topic string, count int) *letters {
	l := &letters{topic: topic, results: map[int]*primitive.SendResult{}, again: map[int]bool{}}
	for n := 0; n < count; n++ {
		l.add([]byte("letter " + strconv.Itoa(n) + " " + text))
	}
	return l
}

func (l *letters) add(body []byte) {
	n := len(l.sent)
	message := primitive.NewMessage(l.topic, body).WithTag(tags[n%3])
	message.WithKeys([]string{"key-" + strconv.Itoa(n), "shared"})
	message.WithProperty("n", strconv.Itoa(n))
	message.WithProperty("text", strings.TrimSpace(text)+strconv.Itoa(n))
	message.WithProperty("größe", "ü"+strconv.Itoa(n))
	l.sent = append(l.sent, message)
}

func noise(size int, seed int64) []byte {
	body := make([]byte, size)
	rand.New(rand.NewSource(seed)).Read(body)
	return body
}

func number(message *primitive.Message) int {
	n, err := strconv.Atoi(message.GetProperty("n"))
	if err != nil {
		return -1
	}
	return n
}

func (l *letters) acknowledged(message *primitive.Message, result *primitive.SendResult) error {
	if result.Status != primitive.SendOK {
		return fmt.Errorf("send status %v", result.Status)
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.results[number(message)] = result
	return nil
}

func (l *letters) tagged(wanted ...string) []*primitive.Message {
	var out []*primitive.Message
	for _, message := range l.sent {
		for _, tag := range wanted {
			if message.GetTags() == tag {
				out = append(out, message)
			}
		}
	}
	return out
}

// failed: a send found no route in the time that the client gives that, or had no answer. These are to be sent again; more than a
// few times, and it is no slow machine.
func (l *letters) failed(err error, messages ...*primitive.Message) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for _, message := range messages {
		l.again[number(message)] = true
	}
	if l.failures++; l.failures > 8 {
		return fmt.Errorf("%d sends failed: %w", l.failures, err)
	}
	return nil
}

// extra: a copy that a failed send left, beside the one that was acknowledged.
func (l *letters) extra(message *primitive.MessageExt) bool {
	result := l.results[number(&message.Message)]
	return l.again[number(&message.Message)] && result != nil &&
		(message.Queue.QueueId != result.MessageQueue.QueueId || message.QueueOffset != result.QueueOffset)
}

// distinct: how many different letters are among what was received.
func (l *letters) distinct(received []*primitive.MessageExt) int {
	numbers := map[int]bool{}
	for _, message := range received {
		if !l.extra(message) {
			numbers[number(&message.Message)] = true
		}
	}
	return len(numbers)
}

// once: without repeats of the same stored message (same queue, same offset), for delivery is at least once when a queue
// changes hands. The same letter stored twice stays twice.
func once(received []*primitive.MessageExt) []*primitive.MessageExt {
	type place struct {
		queue  int
		offset int64
	}
	seen := map[place]bool{}
	var out []*primitive.MessageExt
	for _, message := range received {
		at := place{message.Queue.QueueId, message.QueueOffset}
		if !seen[at] {
			seen[at] = true
			out = append(out, message)
		}
	}
	return out
}

// check: every expected message exactly once and nothing else; in each queue offsets ascend without a gap if `whole`.
func (l *letters) check(expected []*primitive.Message, received []*primitive.MessageExt, whole bool) error {
	byNumber := map[int]*primitive.MessageExt{}
	for _, message := range received {
		n := number(&message.Message)
		if l.extra(message) || l.again[n] && byNumber[n] != nil {
			continue
		}
		if byNumber[n] != nil {
			return fmt.Errorf("%s: message %d twice", l.topic, n)
		}
		byNumber[n] = message
	}
	if len(byNumber) != len(expected) {
		return fmt.Errorf("%s: wanted %d messages, got %d", l.topic, len(expected), len(byNumber))
	}
	for _, message := range expected {
		if err := l.checkOne(message, byNumber[number(message)]); err != nil {
			return fmt.Errorf("%s message %d: %w", l.topic, number(message), err)
		}
	}
	if whole {
		return checkQueues(received)
	}
	return nil
}

func (l *letters) checkOne(wanted *primitive.Message, got *primitive.MessageExt) error {
	switch {
	case got == nil:
		return fmt.Errorf("missing")
	case got.Topic != l.topic:
		return fmt.Errorf("topic %q", got.Topic)
	case !bytes.Equal(wanted.Body, got.Body):
		return fmt.Errorf("body of %d bytes, wanted %d", len(got.Body), len(wanted.Body))
	case got.GetTags() != wanted.GetTags():
		return fmt.Errorf("tags %q", got.GetTags())
	case got.GetKeys() != wanted.GetKeys():
		return fmt.Errorf("keys %q, wanted %q", got.GetKeys(), wanted.GetKeys())
	case got.ReconsumeTimes != 0:
		return fmt.Errorf("reconsumeTimes %d", got.ReconsumeTimes)
	}
	for _, name := range []string{"n", "text", "größe"} {
		if got.GetProperty(name) != wanted.GetProperty(name) {
			return fmt.Errorf("%s %q", name, got.GetProperty(name))
		}
	}
	if result := l.results[number(wanted)]; result != nil {
		if got.Queue.QueueId != result.MessageQueue.QueueId || got.QueueOffset != result.QueueOffset {
			return fmt.Errorf("at %v %d, sent to %v %d", got.Queue, got.QueueOffset, result.MessageQueue, result.QueueOffset)
		}
	}
	return nil
}

func checkQueues(received []*primitive.MessageExt) error {
	offsets := map[int][]int{}
	for _, message := range received {
		offsets[message.Queue.QueueId] = append(offsets[message.Queue.QueueId], int(message.QueueOffset))
	}
	for queue, seen := range offsets {
		sort.Ints(seen)
		for i, offset := range seen {
			if i != offset {
				return fmt.Errorf("queue %d: offset %d at place %d", queue, offset, i)
			}
		}
	}
	return nil
}
