// RocketMQ's own Go client of the remoting protocol at the end of a pipe, as DoorClient.java is that of Java: one command
// a line in, one answer a line out. Fields are separated by tabs. An answer begins with "done" or "error". It ends with
// its input.
//
// Arguments: the addresses of the doors as name servers, the producer group, and an AccessKey with its secret if the
// doors demand one. With a variable DOOR_TRACE it sends message traces.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// For a machine that is loaded; the client's own default is 3 s.
const timeout = 20 * time.Second

var states = map[primitive.LocalTransactionState]string{
	primitive.CommitMessageState:   "COMMIT_MESSAGE",
	primitive.RollbackMessageState: "ROLLBACK_MESSAGE",
	primitive.UnknowState:          "UNKNOW",
}

// What its local transactions and its checks answer, by the text of the message.
type listener struct {
	lock    sync.Mutex
	first   map[string]string
	answers map[string][]string
	asked   map[string]int
	sent    []string
	checks  []string
}

func state(answer string) primitive.LocalTransactionState {
	switch answer {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (one *listener) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	one.lock.Lock()
	defer one.lock.Unlock()
	text := message.GetProperty("text")
	one.sent = append(one.sent, message.TransactionId+"|"+text)
	return state(one.first[text])
}

func (one *listener) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	one.lock.Lock()
	defer one.lock.Unlock()
	text := message.GetProperty("text")
	number := one.asked[text]
	one.asked[text]++
	host, _, _ := strings.Cut(message.BornHost, ":")
	one.checks = append(one.checks, strings.Join([]string{
		text, message.TransactionId, message.Topic, message.GetTags(), message.GetKeys(), message.GetProperty("p"),
		message.GetProperty("TRANSACTION_CHECK_TIMES"), message.GetProperty("PGROUP"), strconv.Itoa(len(message.Body)), host,
	}, "|"))
	answers := one.answers[text]
	if len(answers) == 0 {
		return primitive.UnknowState
	}
	return state(answers[min(number, len(answers)-1)])
}

// A body "x*1000" is a thousand letters x.
func message(topic, text, tags, keys, property string) *primitive.Message {
	body := text
	if letter, times, found := strings.Cut(text, "*"); found {
		count, _ := strconv.Atoi(times)
		body = strings.Repeat(letter, count)
	}
	made := primitive.NewMessage(topic, []byte(body))
	if tags != "" {
		made.WithTag(tags)
	}
	if keys != "" {
		made.WithKeys(strings.Split(keys, " "))
	}
	if property != "" {
		made.WithProperty("p", property)
	}
	made.WithProperty("text", text)
	return made
}

func told(result *primitive.SendResult) []string {
	status := "status " + strconv.Itoa(int(result.Status))
	if result.Status == primitive.SendOK {
		status = "SEND_OK"
	}
	return []string{status, result.MsgID, result.TransactionID, strconv.Itoa(result.MessageQueue.QueueId),
		strconv.FormatInt(result.QueueOffset, 10)}
}

type client struct {
	listener *listener
	// Of transactions, and of other messages: in Go each has its own.
	transactions rocketmq.TransactionProducer
	plain        rocketmq.Producer
}

func (one *client) obey(command []string) ([]string, error) {
	switch command[0] {
	case "transaction": // topic, body, answer, answers to checks, tags, keys, property p
		one.listener.lock.Lock()
		one.listener.first[command[2]] = command[3]
		one.listener.answers[command[2]] = strings.Split(command[4], ",")
		one.listener.lock.Unlock()
		sent := message(command[1], command[2], command[5], command[6], command[7])
		result, err := one.transactions.SendMessageInTransaction(context.Background(), sent)
		if err != nil {
			return nil, err
		}
		return append(told(result.SendResult), states[result.State], sent.TransactionId), nil
	case "plain":
		result, err := one.plain.SendSync(context.Background(), message(command[1], command[2], "", "", ""))
		if err != nil {
			return nil, err
		}
		return told(result), nil
	case "request":
		result, err := one.plain.Request(context.Background(), timeout, message(command[1], command[2], "", "", ""))
		return []string{fmt.Sprint(result)}, err
	case "oneway":
		return nil, one.plain.SendOneWay(context.Background(), message(command[1], command[2], "", "", ""))
	case "batch":
		var batch []*primitive.Message
		for _, body := range strings.Split(command[2], ",") {
			batch = append(batch, message(command[1], body, "", "", ""))
		}
		result, err := one.plain.SendSync(context.Background(), batch...)
		if err != nil {
			return nil, err
		}
		return told(result), nil
	case "delayed":
		level, _ := strconv.Atoi(command[3])
		delayed := message(command[1], command[2], "", "", "").WithDelayTimeLevel(level)
		result, err := one.plain.SendSync(context.Background(), delayed)
		if err != nil {
			return nil, err
		}
		return told(result), nil
	case "sent":
		one.listener.lock.Lock()
		defer one.listener.lock.Unlock()
		return []string{strings.Join(one.listener.sent, ";")}, nil
	case "checks":
		one.listener.lock.Lock()
		defer one.listener.lock.Unlock()
		return []string{strings.Join(one.listener.checks, ";")}, nil
	}
	return nil, errors.New("no such command: " + command[0])
}

func options(group, instance string) []producer.Option {
	made := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver(strings.Split(os.Args[1], ";"))),
		producer.WithGroupName(group),
		producer.WithInstanceName(instance),
		producer.WithSendMsgTimeout(timeout),
	}
	if os.Getenv("DOOR_TRACE") != "" {
		made = append(made, producer.WithTrace(&primitive.TraceConfig{
			GroupName: group, Resolver: primitive.NewPassthroughResolver(strings.Split(os.Args[1], ";")),
		}))
	}
	if len(os.Args) > 4 {
		made = append(made, producer.WithCredentials(primitive.Credentials{AccessKey: os.Args[3], SecretKey: os.Args[4]}))
	}
	return made
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	rlog.SetLogLevel("warn")
	group := os.Args[2]
	made := &client{listener: &listener{
		first: map[string]string{}, answers: map[string][]string{}, asked: map[string]int{},
	}}
	transactions, err := rocketmq.NewTransactionProducer(made.listener, options(group, "transactions")...)
	fatal(err)
	fatal(transactions.Start())
	plain, err := rocketmq.NewProducer(options(group+"-plain", "plain")...)
	fatal(err)
	fatal(plain.Start())
	made.transactions, made.plain = transactions, plain
	commands := bufio.NewScanner(os.Stdin)
	commands.Buffer(nil, 1<<20)
	for commands.Scan() {
		fields, err := made.obey(strings.Split(commands.Text(), "\t"))
		answer := "done\t" + strings.Join(fields, "\t")
		if err != nil {
			answer = "error\t" + err.Error()
		}
		fmt.Println(strings.ReplaceAll(answer, "\n", " "))
	}
	_ = transactions.Shutdown()
	_ = plain.Shutdown()
}
