// Command demo runs Aviary's services on this machine against real servers.
//
// "go run ./test/demo" starts everything, shows what flows until Ctrl-C and stops
// what it started. With -smoke it runs unattended: it lets data flow for a while,
// proves that all of it arrived, prints a table and exits 0 only if so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	smoke := flag.Bool("smoke", false, "run unattended, verify, and exit")
	period := flag.Duration("for", 15*time.Second, "with -smoke: how long data flows before it is verified")
	flag.Parse()
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals // children die with this process
		os.Exit(1)
	}()
	d := &demo{smoke: *smoke, period: *period, screen: newScreen(os.Stdout)}
	err := d.run(ctx)
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled) && !*smoke:
	default:
		fmt.Fprintln(os.Stderr, "demo:", strings.Join(strings.Fields(err.Error()), " "))
		os.Exit(1)
	}
}
