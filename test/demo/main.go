// Command demo runs Aviary's services on this machine against real servers.
//
// "go run ./test/demo" starts everything, shows what flows until Ctrl-C and stops
// what it started. With -smoke it runs unattended: it lets data flow for a while,
// proves that all of it arrived, prints a table and exits 0 only if so.
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
)

func main() {
	smoke := flag.Bool("smoke", false, "run unattended, verify, and exit")
	period := flag.Duration("for", 15*time.Second, "with -smoke: how long data flows before it is verified")
	flag.Parse()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP) // SIGHUP: the terminal was closed
	// Nobody reads this one, and so a write to the screen fails and ends the demo in order. Ignored, it would be so in the servers, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	d := &demo{smoke: *smoke, period: *period, screen: newScreen(os.Stdout)}
	ctx, hurry := obey(signals, d.screen)
	err := d.run(ctx, hurry)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", strings.Join(strings.Fields(err.Error()), " "))
		os.Exit(1)
	}
}

// obey returns a context that ends at the first signal, and one that ends at the second.
// Further ones change nothing: servers outlive this process unless it stops them.
func obey(signals <-chan os.Signal, screen *screen) (ctx, hurry context.Context) {
	ctx, stop := context.WithCancel(context.Background())
	hurry, hasten := context.WithCancel(context.Background())
	go func() {
		s := <-signals
		screen.note("%s: stopping, once more to stop at once", s)
		stop()
		<-signals
		screen.note("stopping at once")
		hasten()
	}()
	return ctx, hurry
}
