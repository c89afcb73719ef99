package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// broker is a Pulsar that only this run uses, on the same machine.
type broker struct {
	url, admin string
	listener   string // the advertised listener that clients ask for
	stop       func()
}

// startBroker starts a broker with the project's settings: the journal is synced.
func startBroker(ctx context.Context, port int, conf ...string) (*broker, error) {
	cfg := stack.Config{Log: os.Stderr, Checkout: fmt.Sprintf("bench-%d-%d", os.Getpid(), port), PulsarPort: port, PulsarConf: map[string]string{}}
	for i := 0; i+1 < len(conf); i += 2 {
		cfg.PulsarConf[conf[i]] = conf[i+1]
	}
	s, err := stack.New(cfg)
	if err != nil {
		return nil, err
	}
	b := &broker{stop: func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Down(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}}
	lines, err := s.Up(ctx, "pulsar")
	if err != nil {
		b.stop()
		return nil, err
	}
	for _, line := range lines {
		if v, ok := strings.CutPrefix(line, "PULSAR_URL="); ok {
			b.url = v
		}
		if v, ok := strings.CutPrefix(line, "PULSAR_ADMIN_URL="); ok {
			b.admin = v
		}
	}
	return b, nil
}

// startFarBroker starts a broker that clients reach through line.
func startFarBroker(ctx context.Context, line *proxy.Proxy) (*broker, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nil, err
	}
	direct := "pulsar://127.0.0.1:" + strconv.Itoa(port)
	b, err := startBroker(ctx, port,
		"advertisedListeners", "direct:"+direct+","+proxy.Listener+":pulsar://"+line.Addr(),
		"internalListenerName", "direct")
	if err != nil {
		return nil, err
	}
	if err := line.Forward(b.url); err != nil {
		b.stop()
		return nil, err
	}
	b.url, b.listener = "pulsar://"+line.Addr(), proxy.Listener
	return b, nil
}

// stored asks the broker how many messages it has taken for the topic.
func (b *broker) stored(ctx context.Context, topic string) (int, error) {
	var stats struct {
		MsgInCounter int `json:"msgInCounter"`
	}
	path := strings.Replace(topic, "://", "/", 1)
	err := get(ctx, b.admin+"/admin/v2/"+path+"/stats", &stats)
	return stats.MsgInCounter, err
}

// storedBytes asks the broker what the topic of p takes in storage.
func (b *broker) storedBytes(ctx context.Context, p piece) (float64, error) {
	var stats struct {
		StorageSize float64 `json:"storageSize"`
	}
	kind := "/stats"
	if p.Partitions > 0 {
		kind = "/partitioned-stats"
	}
	err := get(ctx, b.topicURL(p.Topic)+kind, &stats)
	return stats.StorageSize, err
}

// fresh names a topic that nothing was written to.
func fresh(part string) string {
	return "persistent://public/default/bench-" + part + "-" + rand.Text()
}

func get(ctx context.Context, url string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return fmt.Errorf("GET %s: %s: %s", url, resp.Status, text)
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// put sends a value as JSON.
func put(ctx context.Context, url string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return fmt.Errorf("PUT %s: %s: %s", url, resp.Status, text)
	}
	return nil
}

func del(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return fmt.Errorf("DELETE %s: %s: %s", url, resp.Status, text)
	}
	return nil
}

func minOf(vs []float64) float64 { return slices.Min(vs) }
func maxOf(vs []float64) float64 { return slices.Max(vs) }
