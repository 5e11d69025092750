package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"time"
)

// brokerOf reads the broker's address out of a message id that it gave (four bytes of address, four of port, in hex).
func brokerOf(offsetMsgID string) (string, error) {
	raw, err := hex.DecodeString(offsetMsgID[:16])
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%v:%d", net.IP(raw[:4]), binary.BigEndian.Uint32(raw[4:])), nil
}

// ask sends a broker one request of its own connection and returns what the answer's header and body say.
func ask(broker string, code int, fields map[string]string) (answer, []byte, error) {
	connection, err := net.DialTimeout("tcp", broker, patience)
	if err != nil {
		return answer{}, nil, err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(patience))
	header, _ := json.Marshal(map[string]any{
		"code": code, "flag": 0, "language": "GO", "opaque": 1, "version": 0, "extFields": signed(fields),
	})
	request := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)))
	request = binary.BigEndian.AppendUint32(request, uint32(len(header)))
	if _, err = connection.Write(append(request, header...)); err != nil {
		return answer{}, nil, err
	}
	var sizes struct{ All, Header uint32 }
	if err = binary.Read(connection, binary.BigEndian, &sizes); err != nil {
		return answer{}, nil, err
	}
	frame := make([]byte, sizes.All-4)
	if _, err = io.ReadFull(connection, frame); err != nil {
		return answer{}, nil, err
	}
	split := sizes.Header & 0xFFFFFF
	var head answer
	err = json.Unmarshal(frame[:split], &head)
	return head, bytes.TrimSpace(frame[split:]), err
}

type answer struct {
	Code      int
	ExtFields map[string]string
}

// members asks a broker who is in a consumer group (request 38). The client asks that too, but tells nobody.
func members(broker, group string) ([]string, error) {
	_, text, err := ask(broker, 38, map[string]string{"consumerGroup": group})
	if err != nil || len(text) == 0 {
		return nil, err // without a body it is an error code: nobody is in the group
	}
	var body struct{ ConsumerIdList []string }
	err = json.Unmarshal(text, &body)
	return body.ConsumerIdList, err
}

// lag: how many messages a group has not committed yet in the queues of a topic, as the broker holds the offsets.
func lag(broker, group, topic string, queues int) (int64, error) {
	behind := int64(0)
	for queue := range queues {
		fields := map[string]string{"consumerGroup": group, "topic": topic, "queueId": strconv.Itoa(queue)}
		end, err := offset(broker, 30, fields)
		if err != nil {
			return 0, err
		}
		done, err := offset(broker, 14, fields)
		if err != nil {
			return 0, err
		}
		behind += end - done
	}
	return behind, nil
}

// offset that a broker answers: 14 a group's (0 if it has none), 30 a queue's end.
func offset(broker string, code int, fields map[string]string) (int64, error) {
	head, _, err := ask(broker, code, fields)
	if err != nil || head.Code == 22 { // not found
		return 0, err
	}
	if head.Code != 0 {
		return 0, fmt.Errorf("request %d: code %d", code, head.Code)
	}
	found, err := strconv.ParseInt(head.ExtFields["offset"], 10, 64)
	return max(found, 0), err
}

// indexed: whether the broker finds a message of the topic by that key (request 12).
func indexed(broker, topic, key string) bool {
	head, _, err := ask(broker, 12, map[string]string{
		"topic": topic, "key": key, "maxNum": "1", "beginTimestamp": "0", "endTimestamp": strconv.FormatInt(math.MaxInt64, 10),
	})
	return err == nil && head.Code == 0
}
