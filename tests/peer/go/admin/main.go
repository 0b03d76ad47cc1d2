// The administration of RocketMQ's own Go client, once: `topics`, or `create` with a topic and its number of queues.
//
// Arguments: the address of a door, and the command with its arguments. It prints a line that begins with "done" or "error".
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func obey(door string, command []string) (string, error) {
	one, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{door})))
	if err != nil {
		return "", err
	}
	defer one.Close()
	limited, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if command[0] == "topics" {
		list, err := one.FetchAllTopicList(limited)
		if err != nil {
			return "", err
		}
		return strings.Join(list.TopicList, ","), nil
	}
	queues, err := strconv.Atoi(command[2])
	if err != nil {
		return "", err
	}
	return command[1], one.CreateTopic(limited, admin.WithBrokerAddrCreate(door), admin.WithTopicCreate(command[1]),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues))
}

func main() {
	rlog.SetLogLevel("fatal")
	told, err := obey(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Println("error", err)
		return
	}
	fmt.Println("done", told)
}
