// franz-go on a secured listener. Arguments: a file of settings in JSON, and a topic.
// Commands of standard input, each with one line of output: "send VALUE" and "read COUNT".
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type login struct {
	Bootstrap   string `json:"bootstrap"`
	Protocol    string `json:"protocol"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	TokenFile   string `json:"token_file"`
	Authority   string `json:"authority"`
	Certificate string `json:"certificate"`
	Limit       int    `json:"limit_s"`
}

func (l login) limit() time.Duration {
	return time.Duration(l.Limit) * time.Second
}

func (l login) mechanism() sasl.Mechanism {
	switch l.Mechanism {
	case "PLAIN":
		return plain.Auth{User: l.User, Pass: l.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: l.User, Pass: l.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: l.User, Pass: l.Password}.AsSha512Mechanism()
	}
	return oauth.Oauth(func(context.Context) (oauth.Auth, error) {
		token, err := os.ReadFile(l.TokenFile)
		return oauth.Auth{Token: string(token)}, err
	})
}

func (l login) options() ([]kgo.Opt, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(l.Bootstrap),
		kgo.RequestRetries(2),
		kgo.RetryTimeout(l.limit()),
		kgo.RecordDeliveryTimeout(l.limit()),
	}
	if strings.HasPrefix(l.Protocol, "SASL_") {
		options = append(options, kgo.SASL(l.mechanism()))
	}
	if !strings.HasSuffix(l.Protocol, "SSL") {
		return options, nil
	}
	trusted, err := os.ReadFile(l.Authority)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	config := &tls.Config{RootCAs: roots}
	if l.Certificate != "" {
		own, err := tls.LoadX509KeyPair(l.Certificate, l.Certificate)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return append(options, kgo.DialTLSConfig(config)), nil
}

func send(client *kgo.Client, topic, value string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	return client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr()
}

func read(options []kgo.Opt, topic string, count int, limit time.Duration) ([]string, error) {
	start := kgo.NewOffset().AtStart()
	partitions := map[string]map[int32]kgo.Offset{topic: {0: start}}
	client, err := kgo.NewClient(append(options, kgo.ConsumePartitions(partitions))...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	values := []string{}
	for len(values) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		for _, record := range fetches.Records() {
			values = append(values, string(record.Value))
		}
	}
	return values, nil
}

// The text of the errors of net and crypto/tls does not always name their kind.
func refused(err error) string {
	var network net.Error
	kind := ""
	if errors.As(err, &network) && network.Timeout() {
		kind = "timed out "
	}
	return "refused " + kind + strings.ReplaceAll(err.Error(), "\n", " ")
}

func main() {
	var given login
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		err = json.Unmarshal(text, &given)
	}
	if err != nil {
		log.Fatal(err)
	}
	topic := os.Args[2]
	options, err := given.options()
	if err != nil {
		log.Fatal(err)
	}
	client, err := kgo.NewClient(append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		command, value, _ := strings.Cut(lines.Text(), " ")
		if command == "send" {
			if err := send(client, topic, value, given.limit()); err != nil {
				fmt.Println(refused(err))
			} else {
				fmt.Println("ok")
			}
			continue
		}
		count, _ := strconv.Atoi(value)
		if values, err := read(options, topic, count, given.limit()); err != nil {
			fmt.Println(refused(err))
		} else {
			fmt.Println("ok " + strings.Join(values, ","))
		}
	}
}
