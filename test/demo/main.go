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

	"github.com/aviaryhq/aviary/test/demo/display"
)

func main() {
	smoke := flag.Bool("smoke", false, "run unattended, verify, and exit")
	period := flag.Duration("for", 15*time.Second, "with -smoke: how long data flows before it is verified")
	flag.Parse()
	os.Exit(present(*smoke, func(ctx, hurry context.Context, screen display.Screen) error {
		return (&demo{smoke: *smoke, period: *period, screen: screen}).run(ctx, hurry)
	}))
}

// present runs the demo on what there is to show it on, and returns the exit status.
func present(unattended bool, run func(ctx, hurry context.Context, screen display.Screen) error) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP) // SIGHUP: the terminal was closed
	// Nobody reads this one, and so a write to the screen fails and ends the demo in order.
	// Ignored, it would be so in the servers, too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	err := onScreen(signals, unattended, run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", strings.Join(strings.Fields(err.Error()), " "))
		return 1
	}
	return 0
}

func onScreen(signals chan os.Signal, unattended bool, run func(ctx, hurry context.Context, screen display.Screen) error) error {
	if !unattended && display.Interactive(os.Stdin, os.Stdout) {
		guard, err := display.NewGuard(os.Stdout)
		if err == nil {
			defer guard.Release()
			return inWindow(signals, run)
		}
		fmt.Fprintln(os.Stderr, "demo: lines in place of panels:", err)
	}
	screen := display.NewLines(os.Stdout)
	ctx, hurry := obey(signals, screen)
	return run(ctx, hurry, screen)
}

func inWindow(signals chan os.Signal, run func(ctx, hurry context.Context, screen display.Screen) error) error {
	screen := display.OpenWindow(os.Stdin, os.Stdout, panels(), func() {
		select {
		case signals <- os.Interrupt:
		default: // twice is enough
		}
	})
	ctx, hurry := obey(signals, screen)
	err := run(ctx, hurry, screen)
	return errors.Join(err, screen.Close(os.Stdout))
}

// obey returns a context that ends at the first signal, and one that ends at the second.
// Further ones change nothing: servers outlive this process unless it stops them.
func obey(signals <-chan os.Signal, screen display.Screen) (ctx, hurry context.Context) {
	ctx, stop := context.WithCancel(context.Background())
	hurry, hasten := context.WithCancel(context.Background())
	go func() {
		s := <-signals
		screen.Note("%s: stopping, once more to stop at once", s)
		stop()
		<-signals
		screen.Note("stopping at once")
		hasten()
	}()
	return ctx, hurry
}
