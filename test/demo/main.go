// Command demo runs Aviary's services on this machine against real servers.
//
// "go run ./test/demo" starts servers and services, prints what flows until Ctrl-C and stops
// what it started. With -smoke it runs unattended: data flow for a while, then it compares
// what arrived with what was sent, prints a table and exits 0 only if all of it arrived.
// It may import the rest of test/, pkg/ and the header names of internal/connector/message.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/aviaryhq/aviary/test/demo/display"
)

func main() {
	smoke := flag.Bool("smoke", false, "run unattended, verify, and exit")
	period := flag.Duration("for", 15*time.Second, "with -smoke: how long data flows before it is verified")
	flag.Parse()
	os.Exit(present(func(ctx, hurry context.Context, screen *display.Screen) error {
		return (&demo{smoke: *smoke, period: *period, screen: screen}).run(ctx, hurry)
	}))
}

// present runs the demo and returns the exit status.
func present(run func(ctx, hurry context.Context, screen *display.Screen) error) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP) // SIGHUP: the terminal was closed
	// Nobody reads this channel: a write to a closed pipe then fails and ends the demo in order.
	// signal.Ignore would pass on to the servers.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	screen := display.New(os.Stdout)
	ctx, hurry := obey(signals, screen)
	if err := run(ctx, hurry, screen); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", strings.Join(strings.Fields(err.Error()), " "))
		return 1
	}
	return 0
}

// obey returns a context that ends at the first signal, and one that ends at the second.
// Further ones change nothing: servers outlive this process unless it stops them.
func obey(signals <-chan os.Signal, screen *display.Screen) (ctx, hurry context.Context) {
	ctx, stop := context.WithCancel(context.Background())
	hurry, hasten := context.WithCancel(context.Background())
	go func() {
		s := <-signals
		screen.Note("%s: stopping; press Ctrl-C again to stop at once", s)
		stop()
		<-signals
		screen.Note("stopping at once")
		hasten()
	}()
	return ctx, hurry
}
