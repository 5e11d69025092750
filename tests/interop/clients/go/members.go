package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
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

// members asks a broker who is in a consumer group (request 38). The client asks that too, but tells nobody.
func members(broker, group string) ([]string, error) {
	connection, err := net.DialTimeout("tcp", broker, 3*time.Second)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(5 * time.Second))
	header, _ := json.Marshal(map[string]any{
		"code": 38, "flag": 0, "language": "GO", "opaque": 1, "version": 0,
		"extFields": map[string]string{"consumerGroup": group},
	})
	request := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)))
	request = binary.BigEndian.AppendUint32(request, uint32(len(header)))
	if _, err = connection.Write(append(request, header...)); err != nil {
		return nil, err
	}
	var sizes struct{ All, Header uint32 }
	if err = binary.Read(connection, binary.BigEndian, &sizes); err != nil {
		return nil, err
	}
	answer := make([]byte, sizes.All-4)
	if _, err = io.ReadFull(connection, answer); err != nil {
		return nil, err
	}
	var body struct{ ConsumerIdList []string }
	text := bytes.TrimSpace(answer[sizes.Header&0xFFFFFF:])
	if len(text) == 0 {
		return nil, nil // an error code: nobody is in the group
	}
	err = json.Unmarshal(text, &body)
	return body.ConsumerIdList, err
}
