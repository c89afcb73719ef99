package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"testing"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// The programs that tests start are this test's own, told by this variable what to be.
const fakeVariable = "AVIARY_DEMO_FAKE"

func TestMain(m *testing.M) {
	switch os.Getenv(fakeVariable) {
	case "service":
		fakeService()
	case "demo":
		os.Exit(present(false, fakeDemo))
	case "failing demo":
		os.Exit(present(false, func(context.Context, context.Context, display.Screen) error { return errors.New("a failure") }))
	case "panicking demo":
		os.Exit(present(false, panickingDemo))
	}
	os.Exit(m.Run())
}

// fakeService tells on its admin address what it was started with.
func fakeService() {
	http.HandleFunc("/-/ready", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"pid": os.Getpid(), "args": os.Args[1:], "greeting": os.Getenv("FAKE_GREETING")})
	})
	fmt.Fprintln(os.Stderr, "started", os.Getpid())
	err := (&http.Server{Addr: os.Getenv("FAKE_ADMIN"), ReadHeaderTimeout: patience}).ListenAndServe()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// panickingDemo panics once it is seen: the terminal is raw then.
func panickingDemo(ctx, _ context.Context, screen display.Screen) error {
	asked := make(chan bool, 1)
	screen.Status("pigeonhole", func() display.Figures {
		select {
		case asked <- true:
		default:
		}
		return display.Figures{}
	})
	<-asked
	go panic("a panic in a goroutine")
	<-ctx.Done()
	return nil
}

// fakeDemo has flows that count, and no servers.
func fakeDemo(ctx, hurry context.Context, screen display.Screen) error {
	screen.Note("a note")
	var n atomic.Int64
	screen.Status("pigeonhole", func() display.Figures {
		arrived := n.Add(100)
		return display.Figures{Unit: "messages", From: "Kafka", To: "a topic", Sent: new(arrived), Arrived: arrived, Missing: new(int64), Twice: new(int64)}
	})
	screen.Sample("pigeonhole", func() string { return "a record" })
	fmt.Fprintln(os.Stderr, "said meanwhile")
	err := screen.Refresh(ctx)
	screen.End()
	screen.Note("stopping servers")
	if os.Getenv("FAKE_SLOW") != "" { // what stops is slow, and told to hurry
		<-hurry.Done()
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
