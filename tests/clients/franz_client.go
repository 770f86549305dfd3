// franz-go as a process: writes the records of standard input, or prints those it reads.
// Lines are JSON: {"key": base64 or null, "value": ..., "headers": [[name, base64]], "timestamp": ms}
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type record struct {
	Key       []byte      `json:"key"`
	Value     []byte      `json:"value"`
	Headers   [][2]string `json:"headers"`
	Timestamp int64       `json:"timestamp"`
}

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func write(bootstrap, topic, codec string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.ProducerBatchCompression(codecs[codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	var records []*kgo.Record
	lines := json.NewDecoder(os.Stdin)
	for lines.More() {
		var read record
		if err := lines.Decode(&read); err != nil {
			return err
		}
		sent := &kgo.Record{Topic: topic, Key: read.Key, Value: read.Value, Timestamp: time.UnixMilli(read.Timestamp)}
		for _, header := range read.Headers {
			value, err := decoded(header[1])
			if err != nil {
				return err
			}
			sent.Headers = append(sent.Headers, kgo.RecordHeader{Key: header[0], Value: value})
		}
		records = append(records, sent)
	}
	return client.ProduceSync(context.Background(), records...).FirstErr()
}

func decoded(text string) (value []byte, err error) {
	err = json.Unmarshal([]byte(strconv.Quote(text)), &value)
	return value, err
}

func read(bootstrap, topic string, count int) error {
	start := kgo.NewOffset().AtStart()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: start}}),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	out := json.NewEncoder(os.Stdout)
	for seen := 0; seen < count; {
		fetches := client.PollFetches(context.Background())
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, got := range fetches.Records() {
			printed := record{Key: got.Key, Value: got.Value, Headers: [][2]string{}, Timestamp: got.Timestamp.UnixMilli()}
			for _, header := range got.Headers {
				value, err := json.Marshal(header.Value)
				if err != nil {
					return err
				}
				var text string
				if err := json.Unmarshal(value, &text); err != nil {
					return err
				}
				printed.Headers = append(printed.Headers, [2]string{header.Key, text})
			}
			if err := out.Encode(printed); err != nil {
				return err
			}
			seen++
		}
	}
	return nil
}

func main() {
	action, bootstrap, topic, last := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	err := error(nil)
	if action == "write" {
		err = write(bootstrap, topic, last)
	} else {
		count, _ := strconv.Atoi(last)
		err = read(bootstrap, topic, count)
	}
	if err != nil {
		log.Fatal(err)
	}
}
