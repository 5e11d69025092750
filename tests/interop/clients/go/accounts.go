package main

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Environment variables that name a user as ACCESS:SECRET. Producers sign for one who may publish, consumers for one who may consume.
// The stale one has the right secret for the name server, another one for the broker.
const (
	producerUser = "INTEROP_PRODUCER"
	consumerUser = "INTEROP_CONSUMER"
	staleUser    = "INTEROP_STALE"
	nobodyUser   = "INTEROP_NOBODY"
)

// credentials of a user; without the variable they are empty, and requests are not signed.
func credentials(user string) primitive.Credentials {
	access, secret, _ := strings.Cut(os.Getenv(user), ":")
	return primitive.Credentials{AccessKey: access, SecretKey: secret}
}

// signed adds the signature of a request without a body to its header fields, for who consumes.
func signed(fields map[string]string) map[string]string {
	who := credentials(consumerUser)
	if who.IsEmpty() {
		return fields
	}
	fields = maps.Clone(fields)
	fields["AccessKey"] = who.AccessKey
	mac := hmac.New(sha1.New, []byte(who.SecretKey))
	names := []string{}
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		mac.Write([]byte(fields[name]))
	}
	fields["Signature"] = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	return fields
}

// refused: those who may not are told so, and get no message; those who may, beside them, do.
func refused(s *session, topic string) (string, error) {
	p, l, err := s.started(topic, 1)
	if err != nil {
		return "", err
	}
	everything := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	stolen, box := &inbox{}, &inbox{}
	if _, err = s.pushAs(staleUser, topic+"-stale", "a", topic, everything, stolen); err != nil {
		return "", err
	}
	if _, err = s.pushAs(consumerUser, topic+"-group", "a", topic, everything, box); err != nil {
		return "", err
	}
	for user, reason := range map[string]string{
		staleUser: "access denied", consumerUser: "has no permission", nobodyUser: "route info not found",
	} {
		other, err := s.producer(topic+user, producer.WithCredentials(credentials(user)))
		if err != nil {
			return "", err
		}
		_, err = other.SendSync(patiently(), primitive.NewMessage(topic, []byte("x")))
		if err == nil || !strings.Contains(err.Error(), reason) {
			return "", fmt.Errorf("%s is told %v", user, err)
		}
	}
	if err = s.send(p, l, 1, s.count); err != nil {
		return "", err
	}
	if err = eventually("all", func() bool { return l.distinct(box.all()) >= s.count }); err != nil {
		return "", err
	}
	if len(stolen.all()) > 0 {
		return "", fmt.Errorf("%d messages of who has a wrong key", len(stolen.all()))
	}
	return "three were refused", l.check(l.sent, box.all(), true)
}
