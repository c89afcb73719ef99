package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// The programs that tests start are this test's own, and this variable says which one.
const fakeVariable = "AVIARY_DEMO_FAKE"

func TestMain(m *testing.M) {
	switch os.Getenv(fakeVariable) {
	case "service":
		fakeService()
	case "failing demo":
		os.Exit(present(func(context.Context, context.Context, *display.Screen) error {
			return errors.New("a failure\nof two lines")
		}))
	}
	os.Exit(m.Run())
}

// fakeService reports on its admin address what it was started with. It is not ready while the file
// FAKE_HOLD exists, and ends in order at a request of /end. As many starts fail as the file
// FAKE_FAIL has bytes.
func fakeService() {
	if left, err := os.ReadFile(os.Getenv("FAKE_FAIL")); err == nil && len(left) > 0 {
		_ = os.WriteFile(os.Getenv("FAKE_FAIL"), left[1:], 0o600)
		fmt.Fprintln(os.Stderr, "cannot start")
		os.Exit(1)
	}
	http.HandleFunc("/end", func(http.ResponseWriter, *http.Request) { os.Exit(0) })
	http.HandleFunc("/-/ready", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(os.Getenv("FAKE_HOLD")); err == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"pid": os.Getpid(), "args": os.Args[1:], "greeting": os.Getenv("FAKE_GREETING")})
	})
	fmt.Fprintln(os.Stderr, "started", os.Getpid())
	err := (&http.Server{Addr: os.Getenv("FAKE_ADMIN"), ReadHeaderTimeout: patience}).ListenAndServe()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
