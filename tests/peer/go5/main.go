// RocketMQ's official Go client at the end of a pipe, as GrpcClient.java is that of Java: one command a line in, one
// answer a line out. Fields are separated by tabs. An answer begins with "done" or "error". It ends with its input.
//
// Arguments: the addresses of the doors, the topics that the producer names at its start, an AccessKey with its secret,
// and whether it speaks TLS.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	lock    sync.Mutex
	answers = map[string][]string{}
	asked   = map[string]int{}
	checks  []string
)

func check(message *rocketmq.MessageView) rocketmq.TransactionResolution {
	lock.Lock()
	defer lock.Unlock()
	text := message.GetProperties()["text"]
	keys := append([]string{}, message.GetKeys()...)
	sort.Strings(keys)
	tag := ""
	if message.GetTag() != nil {
		tag = *message.GetTag()
	}
	host := *message.GetBornHost()
	// It has no public method that says whether the message is corrupted.
	checks = append(checks, strings.Join([]string{text, message.GetMessageId(), message.GetTopic(), tag,
		strings.Join(keys, " "), message.GetProperties()["p"], strconv.Itoa(len(message.GetBody())), "False",
		host[:strings.LastIndex(host, ":")]}, "|"))
	known := answers[text]
	answer := "unknown"
	if len(known) > 0 {
		answer = known[min(asked[text], len(known)-1)]
	}
	asked[text]++
	switch answer {
	case "commit":
		return rocketmq.COMMIT
	case "rollback":
		return rocketmq.ROLLBACK
	}
	return rocketmq.UNKNOWN
}

func message(topic, text, tag, keys, property string) *rocketmq.Message {
	made := &rocketmq.Message{Topic: topic, Body: []byte(text)}
	made.AddProperty("text", text)
	if tag != "" {
		made.SetTag(tag)
	}
	if keys != "" {
		made.SetKeys(strings.Split(keys, " ")...)
	}
	if property != "" {
		made.AddProperty("p", property)
	}
	return made
}

func obey(producer rocketmq.Producer, command []string) (string, error) {
	// For a machine that is loaded.
	patience, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	switch command[0] {
	case "plain":
		receipts, err := producer.Send(patience, message(command[1], command[2], "", "", ""))
		if err != nil {
			return "", err
		}
		return receipts[0].MessageID, nil
	case "transaction": // topic, body, answer, answers to checks, tag, keys, property p
		lock.Lock()
		answers[command[2]] = strings.Split(command[4], ",")
		lock.Unlock()
		begun := producer.BeginTransaction()
		sent := message(command[1], command[2], command[5], command[6], command[7])
		receipts, err := producer.SendWithTransaction(patience, sent, begun)
		if err != nil {
			return "", err
		}
		switch command[3] {
		case "commit":
			err = begun.Commit()
		case "rollback":
			err = begun.RollBack()
		}
		return receipts[0].MessageID, err
	case "checks":
		lock.Lock()
		defer lock.Unlock()
		return strings.Join(checks, ";"), nil
	}
	return "", errors.New("no such command: " + command[0])
}

func main() {
	rocketmq.EnableSsl = os.Args[5] == "true"
	configuration := &rocketmq.Config{
		Endpoint:    os.Args[1],
		Credentials: &credentials.SessionCredentials{AccessKey: os.Args[3], AccessSecret: os.Args[4]},
	}
	options := []rocketmq.ProducerOption{rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: check})}
	if os.Args[2] != "" {
		options = append(options, rocketmq.WithTopics(strings.Split(os.Args[2], ",")...))
	}
	producer, err := rocketmq.NewProducer(configuration, options...)
	if err == nil {
		err = producer.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		answer, err := obey(producer, strings.Split(commands.Text(), "\t"))
		if err != nil {
			answer = "error\t" + err.Error()
		} else {
			answer = "done\t" + answer
		}
		fmt.Println(strings.ReplaceAll(answer, "\n", " "))
	}
	_ = producer.GracefulStop()
}
