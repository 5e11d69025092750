// Go's client at the head of its repository, which has TLS where 2.1.2 has none: sends COUNT messages and consumes
// them, and prints one JSON line.
//
//	tls NAMESRV PREFIX COUNT
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const patience = 180 * time.Second // only a failure waits that long, or a machine busy with much else

func main() {
	rlog.SetLogLevel("error")
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	started := time.Now()
	detail, err := sendAndPush(os.Args[1], os.Args[2], count)
	if err != nil {
		detail = err.Error()
	}
	report, _ := json.Marshal(map[string]any{
		"scenario": "send_and_push", "ok": err == nil, "seconds": time.Since(started).Seconds(), "detail": detail,
	})
	fmt.Println(string(report))
	if err != nil {
		os.Exit(1)
	}
}

func sendAndPush(namesrv, prefix string, count int) (string, error) {
	names := primitive.NewPassthroughResolver([]string{namesrv})
	sender, err := rocketmq.NewProducer(
		producer.WithNsResolver(names), producer.WithGroupName(prefix+"-producer"), producer.WithTls(true),
		producer.WithSendMsgTimeout(time.Minute),
	)
	if err != nil {
		return "", err
	}
	if err := sender.Start(); err != nil {
		return "", err
	}
	defer sender.Shutdown()
	topic, wanted := prefix+"-letters", map[string]bool{}
	for i := 0; i < count; i++ {
		body := fmt.Sprintf("letter %d", i)
		wanted[body] = true
		if _, err := sender.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body))); err != nil {
			return "", err
		}
	}
	received := make(chan string, count)
	reader, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(names), consumer.WithGroupName(prefix+"-consumer"), consumer.WithTls(true),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return "", err
	}
	err = reader.Subscribe(topic, consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				received <- string(message.Body)
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return "", err
	}
	if err := reader.Start(); err != nil {
		return "", err
	}
	defer reader.Shutdown()
	end := time.After(patience)
	for len(wanted) > 0 {
		select {
		case body := <-received:
			delete(wanted, body)
		case <-end:
			return "", fmt.Errorf("%d of %d did not come", len(wanted), count)
		}
	}
	return fmt.Sprintf("%d sent and consumed", count), nil
}
