// Runs every scenario of Apache's Go client at once against the name server given, each on topics and groups that start
// with the prefix given, and prints one JSON line per scenario as it ends. Exits 0 only when all passed. With
// INTEROP_SCENARIOS=a,b in the environment: those alone.
//
//	interop NAMESRV PREFIX COUNT
//	interop requests NAMESRV PREFIX COUNT       asks and answers somebody else's client
//	interop delaying NAMESRV PREFIX COUNT       delay levels and messages sent back, with a short messageDelayLevel
//	interop producing NAMESRV PREFIX COUNT      every kind of send, for somebody else to read
//	interop accounts NAMESRV PREFIX COUNT       with servers that check who asks
//	interop transacting NAMESRV PREFIX COUNT    transactions, with a short transactionTimeOut and check interval
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const patience = 180 * time.Second // only a failure waits that long, or a machine busy with much else

type session struct {
	namesrv string
	prefix  string
	count   int

	mutex sync.Mutex
	done  []*letters // what was sent, for somebody else to read
}

func (s *session) remember(l *letters) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.done = append(s.done, l)
}

type scenario func(s *session, topic string) (string, error)

var scenarios = map[string]scenario{
	"send_sync":        sendSync,
	"send_async":       sendAsync,
	"send_oneway":      sendOneway,
	"send_batch":       sendBatch,
	"send_to_queue":    sendToQueue,
	"send_large":       sendLarge,
	"send_signed":      sendSigned,
	"push_from_first":  pushFromFirst,
	"push_tag_filter":  pushTagFilter,
	"push_sql_filter":  pushSQLFilter,
	"push_two_balance": pushTwoBalance,
	"push_resume":      pushResume,
	"pull_poll":        pullPoll,
	"admin_topic":      adminTopic,
	"request_reply":    requestReply,
}

type report struct {
	Scenario string  `json:"scenario"`
	OK       bool    `json:"ok"`
	Seconds  float64 `json:"seconds"`
	Detail   string  `json:"detail"`
}

func run(name string, work scenario, s *session) (result report) {
	start := time.Now()
	result.Scenario = name
	defer func() {
		if panicked := recover(); panicked != nil {
			result.OK, result.Detail = false, fmt.Sprint("panic: ", panicked)
			os.Stderr.Write(debug.Stack())
		}
		result.Seconds = float64(time.Since(start).Milliseconds()) / 1000
	}()
	detail, err := work(s, s.prefix+"-"+name)
	if err != nil {
		return report{Scenario: name, Detail: err.Error()}
	}
	return report{Scenario: name, OK: true, Detail: detail}
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: interop NAMESRV PREFIX COUNT [BROKER AGAIN]")
		os.Exit(2)
	}
	rlog.SetLogLevel("error")
	mode := os.Args[1]
	programs := map[string]func(*session) bool{
		"requests": asksAndAnswers, "delaying": delaying, "producing": producing, "transacting": transacting,
	}
	program, others := programs[mode]
	if mode == "accounts" {
		scenarios["transactions"], scenarios["refused"] = transactions, refused
	}
	if others || mode == "accounts" {
		os.Args = append(os.Args[:1], os.Args[2:]...)
	}
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	s := &session{namesrv: os.Args[1], prefix: os.Args[2], count: count}
	if others {
		if !program(s) {
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 6 { // the child process of pushResume: PREFIX is the topic
		l := newLetters(s.prefix, s.count)
		if err = json.Unmarshal([]byte(os.Args[5]), &l.again); err == nil {
			err = s.consume(l, "first", l.sent[:s.count/2], os.Args[4])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var printing sync.Mutex
	var running sync.WaitGroup
	failed := false
	wanted := os.Getenv("INTEROP_SCENARIOS")
	for name, work := range scenarios {
		if wanted != "" && !slices.Contains(strings.Split(wanted, ","), name) {
			continue
		}
		running.Add(1)
		go func() {
			defer running.Done()
			result := run(name, work, s)
			line, _ := json.Marshal(result)
			printing.Lock()
			defer printing.Unlock()
			fmt.Println(string(line))
			failed = failed || !result.OK
		}()
	}
	running.Wait()
	if failed {
		os.Exit(1)
	}
}

// eventually asks every 20 ms until true.
func eventually(what string, question func() bool) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if question() {
			return nil
		}
	}
	return errors.New("never came true: " + what)
}
