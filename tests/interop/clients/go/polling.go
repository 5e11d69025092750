package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// A pull consumer that subscribes, in a group with others, until its standard input ends:
//
//	interop polling NAMESRV TOPIC GROUP
//
// It prints a line for each message: E queue offset ms.
func init() {
	if len(os.Args) == 5 && os.Args[1] == "polling" {
		rlog.SetLogLevel("fatal")
		if err := polling(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func polling(namesrv, topic, group string) error {
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{namesrv}),
		consumer.WithGroupName(group),
		consumer.WithInstance(fmt.Sprintf("polling-go-%d", os.Getpid())),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		return err
	}
	if err = c.Subscribe(topic, consumer.MessageSelector{}); err != nil {
		return err
	}
	if err = c.Start(); err != nil {
		return err
	}
	fmt.Println("ready")
	go func() {
		for {
			request, err := c.Poll(context.Background(), time.Second)
			if err != nil {
				continue
			}
			for _, message := range request.GetMsgList() {
				fmt.Println("E", message.Queue.QueueId, message.QueueOffset, time.Now().UnixMilli())
			}
			c.ACK(context.Background(), request, consumer.ConsumeSuccess)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return c.Shutdown()
}
