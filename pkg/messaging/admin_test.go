package messaging_test

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// manager is a client without brokers, which managing does not need.
func manager(t *testing.T, adminURL string) *messaging.Client {
	t.Helper()
	return dialWith(t, messaging.Config{URL: "pulsar://127.0.0.1:1", AdminURL: adminURL})
}

// every calls each kind of operation once.
func every(client *messaging.Client) []managing {
	return managingAll(client.Topic(topic), client.Namespace("public/default"))
}

func TestManagingWithoutAdminURL(t *testing.T) {
	for _, op := range every(manager(t, "")) {
		require.ErrorIs(t, op.do(testContext(t)), messaging.ErrNoAdminURL, op.name)
	}
}

func TestManagingIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		kind    error
		says    string
	}{
		"not authenticated": {answers(401, "who?"), messaging.ErrAuthentication, "401 Unauthorized"},
		"not permitted":     {answers(403, `{"reason":"Unauthorized to do it\n\tat x"}`), messaging.ErrAuthorization, "Unauthorized to do it"},
		"not found":         {answers(404, `{"reason":"No such thing"}`), messaging.ErrNotFound, "404 Not Found: No such thing"},
		"in circles": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}, nil, "too many redirects"},
		"broken": {answers(500, strings.Repeat("x", 5<<20)), nil, "500 Internal Server Error"},
	} {
		t.Run(name, func(t *testing.T) {
			client := manager(t, newAdminServer(t, nil, test.handler).URL)
			for _, op := range every(client) {
				err := op.do(testContext(t))
				require.ErrorContains(t, err, test.says, op.name)
				require.ErrorContains(t, err, "messaging: ", op.name)
				require.NotContains(t, err.Error(), "at x", op.name)
				if test.kind != nil {
					require.ErrorIs(t, err, test.kind, op.name)
				}
			}
		})
	}
}

// Nothing is done twice, and nothing is sent on as something else.
func TestManagingIsTriedOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := make(map[string]int)
	s := newAdminServer(t, nil, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked[r.Method]++
		http.Redirect(w, r, "/elsewhere", http.StatusSeeOther) // which asks for a GET
	})
	client := manager(t, s.URL)
	require.ErrorContains(t, client.Topic(topic).Create(testContext(t), 3), "with another request")
	require.ErrorContains(t, client.Topic(topic).Subscription("s").Delete(testContext(t)), "with another request")
	require.Equal(t, map[string]int{http.MethodPut: 1, http.MethodDelete: 1}, asked)
}

func TestManagingIsSentOnWithItsContent(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	owner := newAdminServer(t, nil, func(_ http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		got <- r.Method + " " + r.URL.Path + " " + string(data)
	})
	first := newAdminServer(t, nil, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, owner.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})
	require.NoError(t, manager(t, first.URL).Topic("a/b/c").Create(testContext(t), 3))
	require.Equal(t, "PUT /admin/v2/persistent/a/b/c/partitions 3", <-got)
}

// Whoever waits for an answer that does not come is let go by its context and by Close.
func TestManagingIsGivenUp(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	s := newAdminServer(t, nil, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees the client go
		asked <- struct{}{}
		<-r.Context().Done()
	})
	for _, op := range every(manager(t, s.URL)) {
		ctx, cancel := context.WithCancel(testContext(t))
		ended := make(chan error, 1)
		go func() { ended <- op.do(ctx) }()
		<-asked
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled, op.name)
	}
	client := manager(t, s.URL)
	ops := every(client)
	ended := make(chan error, len(ops))
	for _, op := range ops {
		go func() { ended <- op.do(testContext(t)) }()
		<-asked
	}
	require.NoError(t, client.Close(testContext(t)))
	for _, op := range ops {
		require.ErrorIs(t, <-ended, messaging.ErrClosed)
		require.ErrorIs(t, op.do(testContext(t)), messaging.ErrClosed)
	}
}

// Many may manage at once.
func TestManagingSideBySide(t *testing.T) {
	t.Parallel()
	s := newAdminServer(t, nil, answers(200, `{"partitions":3,"subscriptions":{"s":{"msgBacklog":7}}}`))
	client := manager(t, s.URL)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			n, err := client.Topic(topic).Subscription("s").Backlog(testContext(t))
			if err != nil || n != 7 {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
	wg.Wait()
}

func TestWrongNamesAreNotAskedFor(t *testing.T) {
	t.Parallel()
	s := newAdminServer(t, nil, func(http.ResponseWriter, *http.Request) { t.Error("asked") })
	client := manager(t, s.URL)
	for _, name := range []string{"", "a/b", "persistent://a/b", "http://a/b/c", "non-persistent://a/b/c"} {
		require.ErrorContains(t, client.Topic(name).Delete(testContext(t)), "persistent topic", name)
	}
	for _, name := range []string{"", "a", "a/", "/b", "a/b/c"} {
		_, _, err := client.Namespace(name).Retention(testContext(t))
		require.ErrorContains(t, err, "tenant/namespace", name)
	}
	require.ErrorContains(t, client.Topic(topic).Subscription("").Delete(testContext(t)), "must have a name")
}

// A name cannot lead a request elsewhere.
func TestNamesAreEscaped(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	s := newAdminServer(t, nil, func(_ http.ResponseWriter, r *http.Request) { got <- r.URL.EscapedPath() + "?" + r.URL.RawQuery })
	client := manager(t, s.URL)
	require.NoError(t, client.Topic("persistent://a/b/c?d#e/../%2F").Subscription("../x?force=true").Skip(testContext(t), 1))
	require.Equal(t, "/admin/v2/persistent/a/b/c%3Fd%23e%2F..%2F%252F/subscription/..%2Fx%3Fforce=true/skip/1?", <-got)
}

func TestPeekIsBounded(t *testing.T) {
	t.Parallel()
	// entry answers with a message of that many bytes.
	entry := func(size int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/subscriptions") {
				_, _ = io.WriteString(w, `["s"]`)
				return
			}
			position := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
			w.Header().Set("X-Pulsar-Message-ID", "1:"+position)
			_, _ = w.Write(make([]byte, size))
		}
	}
	peek := func(size int) ([]messaging.PeekedMessage, error) {
		s := newAdminServer(t, nil, entry(size))
		return manager(t, s.URL).Topic(topic).Subscription("s").Peek(testContext(t), messaging.MaxPeek)
	}
	got, err := peek(5 << 20)
	require.NoError(t, err)
	require.Len(t, got, 3, "16 MiB hold three of 5 MiB")
	require.Equal(t, "1:3:0:0", got[2].ID.String())
	got, err = peek(10)
	require.NoError(t, err)
	require.Len(t, got, messaging.MaxPeek)
	_, err = peek(17 << 20)
	require.ErrorContains(t, err, "larger than 16777216 bytes")
}

func TestPeekOfSomethingElse(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]map[string]string{
		"no id":          nil,
		"another id":     {"X-Pulsar-Message-ID": "latest"},
		"no time":        {"X-Pulsar-Message-ID": "1:2", "X-Pulsar-publish-time": "yesterday"},
		"no properties":  {"X-Pulsar-Message-ID": "1:2", "X-Pulsar-PROPERTY": "[1]"},
		"no number":      {"X-Pulsar-Message-ID": "1:2", "X-Pulsar-num-batch-message": "many"},
		"a broken batch": {"X-Pulsar-Message-ID": "1:2", "X-Pulsar-num-batch-message": "2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAdminServer(t, nil, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/subscriptions") {
					_, _ = io.WriteString(w, `["s"]`)
					return
				}
				for k, v := range header {
					w.Header().Set(k, v)
				}
				_, _ = io.WriteString(w, "\x00\x00\x00\x02xx")
			})
			_, err := manager(t, s.URL).Topic(topic).Subscription("s").Peek(testContext(t), 2)
			require.ErrorContains(t, err, "not the JSON of Pulsar's admin API")
		})
	}
}

func TestCompactionOfPartitionsIsTheirWorst(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		of   []string
		want messaging.CompactionState
	}{
		{[]string{"SUCCESS", "SUCCESS"}, messaging.CompactionDone},
		{[]string{"SUCCESS", "NOT_RUN"}, messaging.CompactionNotRun},
		{[]string{"NOT_RUN", "RUNNING"}, messaging.CompactionRunning},
		{[]string{"RUNNING", "NOT_RUN"}, messaging.CompactionRunning},
		{[]string{"RUNNING", "ERROR"}, messaging.CompactionFailed},
		{[]string{"ERROR", "SUCCESS"}, messaging.CompactionFailed},
	} {
		s := newAdminServer(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/partitions") {
				_, _ = io.WriteString(w, `{"partitions":2}`)
				return
			}
			_, index, _ := strings.Cut(strings.TrimSuffix(r.URL.Path, "/compaction"), "-partition-")
			i, _ := strconv.Atoi(index)
			_, _ = io.WriteString(w, `{"status":"`+test.of[i]+`","lastError":"no room"}`)
		})
		state, reason, err := manager(t, s.URL).Topic(topic).Compaction(testContext(t))
		require.NoError(t, err)
		require.Equal(t, test.want, state, test.of)
		require.Equal(t, state == messaging.CompactionFailed, reason == "no room")
	}
}

func TestCreateAtATimeSaysWhereItStopped(t *testing.T) {
	t.Parallel()
	s := newAdminServer(t, nil, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet:
			_, _ = io.WriteString(w, `{"partitions":0}`)
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	err := manager(t, s.URL).Topic(topic).Subscription("s").Create(testContext(t), messaging.AtTime(time.Now()))
	require.ErrorContains(t, err, "the subscription was created at the earliest message: ")
}
