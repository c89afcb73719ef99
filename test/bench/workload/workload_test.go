package workload

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// TestReadUnchanged reads a file with the fields that files of the OpenMessaging Benchmark have.
func TestReadUnchanged(t *testing.T) {
	w, err := Read("testdata/1-topic-16-partitions-1kb.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := Workload{
		Name: "1 topic / 16 partitions / 1Kb", Topics: 1, PartitionsPerTopic: 16,
		KeyDistributor: NoKey, MessageSize: 1024,
		PayloadFile:           filepath.Join("testdata", "payload", "payload-1Kb.data"),
		SubscriptionsPerTopic: 1, ConsumerPerSubscription: 1, ProducersPerTopic: 1, ProducerRate: 50000, BacklogDrainRatio: 1,
		TestDurationMinutes: 15, WarmupDurationMinutes: 1,
	}
	if w != want {
		t.Errorf("got %+v\nnot %+v", w, want)
	}
	if all, err := w.Payloads(); err != nil || len(all) != 1 || len(all[0]) != 1024 {
		t.Errorf("%d payloads of %d bytes, error %v", len(all), len(all[0]), err)
	}
}

// TestPayloadFile looks for the file beside the workload and in the folder above.
func TestPayloadFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"above.data":            strings.Repeat("a", StampSize),
		"workloads/beside.data": strings.Repeat("b", StampSize), "workloads/short.data": "c",
		"workloads/above.yaml": "payloadFile: above.data", "workloads/beside.yaml": "payloadFile: beside.data",
		"workloads/short.yaml": "{payloadFile: short.data, subscriptionsPerTopic: 1}",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, first := range map[string]byte{"above": 'a', "beside": 'b'} {
		w, err := Read(filepath.Join(dir, "workloads", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if all, err := w.Payloads(); err != nil || all[0][0] != first {
			t.Errorf("%s: %s, error %v", name, all, err)
		}
	}
	short, err := Read(filepath.Join(dir, "workloads", "short.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := short.Payloads(); err == nil || !strings.Contains(err.Error(), "must have at least 16") {
		t.Errorf("error %v", err)
	}
}

func TestUnknownFields(t *testing.T) {
	var w Workload
	err := decode("file.yaml", []byte("topics: 1\ntopicks: 2\nmessageSize: 3\nmessagesize: 4\n"), &w)
	for _, want := range []string{"line 2: unknown field topicks", "line 4: unknown field messagesize"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error %v", want, err)
		}
	}
}

func TestValidate(t *testing.T) {
	for field, change := range map[string]func(*Workload){
		"topics:":                  func(w *Workload) { w.Topics = 0 },
		"partitionsPerTopic:":      func(w *Workload) { w.PartitionsPerTopic = -1 },
		"messageSize: must be":     func(w *Workload) { w.MessageSize = 0 },
		"messageSize: 15:":         func(w *Workload) { w.MessageSize = StampSize - 1 },
		"producersPerTopic:":       func(w *Workload) { w.ProducersPerTopic = 0 },
		"subscriptionsPerTopic:":   func(w *Workload) { w.SubscriptionsPerTopic = -1 },
		"consumerPerSubscription:": func(w *Workload) { w.ConsumerPerSubscription = 0 },
		"producerRate:":            func(w *Workload) { w.ProducerRate = -1 },
		"randomBytesRatio:":        func(w *Workload) { w.RandomBytesRatio = 1.1 },
		"consumerBacklogSizeGB:":   func(w *Workload) { w.ConsumerBacklogSizeGB = -1 },
		"consumerBacklogSizeGB: needs": func(w *Workload) {
			w.ConsumerBacklogSizeGB, w.SubscriptionsPerTopic = 1, 0
		},
		"backlogDrainRatio:":     func(w *Workload) { w.BacklogDrainRatio = 0 },
		"testDurationMinutes:":   func(w *Workload) { w.TestDurationMinutes = 0 },
		"warmupDurationMinutes:": func(w *Workload) { w.WarmupDurationMinutes = -1 },
		"keyDistributor:":        func(w *Workload) { w.KeyDistributor = "NONE" },
	} {
		w := Default()
		w.MessageSize, w.SubscriptionsPerTopic = 1024, 1
		if err := w.Validate(); err != nil {
			t.Fatal(err)
		}
		if change(&w); w.Validate() == nil || !strings.Contains(w.Validate().Error(), field) {
			t.Errorf("%s error %v", field, w.Validate())
		}
	}
}

func TestEach(t *testing.T) {
	s, err := ReadScenario(fstest.MapFS{"one.yaml": {Data: []byte(`
parts:
  - name: part
    each: {topics: [1, 10], messageSize: [100, 200]}
    workload: {producerRate: 5, partitionsPerTopic: 1}
    sides: [{name: library, driver: library}]
`)}}, "one.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range s.Parts {
		got = append(got, p.Name+" "+p.Workload.String())
	}
	want := []string{
		"part_messageSize_100_topics_1 1 topics of 1 partitions, 100 B, 5 msg/s",
		"part_messageSize_100_topics_10 10 topics of 1 partitions, 100 B, 5 msg/s",
		"part_messageSize_200_topics_1 1 topics of 1 partitions, 200 B, 5 msg/s",
		"part_messageSize_200_topics_10 10 topics of 1 partitions, 200 B, 5 msg/s",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %s\nnot %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestScenarioFaults(t *testing.T) {
	_, err := ReadScenario(fstest.MapFS{"one.yaml": {Data: []byte(`
parts:
  - name: empty
    workload: {messageSize: 0}
  - name: wrong
    workload: {messageSize: 100}
    sides: [{name: library, driver: library, broker: other}]
    targets: [{name: two, figure: publish_msg_s, of: library, over: nobody, atLeast: 1, atMost: 2}]
`)}}, "one.yaml")
	for _, want := range []string{
		"part empty: messageSize", "part empty: sides", `side library: broker: "other"`, `target two: "nobody"`,
		"one of atLeast and atMost",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error %v", want, err)
		}
	}
}
