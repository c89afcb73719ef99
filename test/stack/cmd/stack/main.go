// Command stack installs, starts and stops the real servers for development and tests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/aviaryhq/aviary/test/stack"
)

const usage = `usage: stack [flags] up SERVICE...     start servers, print KEY=VALUE lines when all are healthy
       stack [flags] down              stop what was started from this checkout, by up, demo, smoke and tests;
                                       with AVIARY_STACK=NAME in the environment that stack alone
       stack [flags] fetch SERVICE...  install only
services: pulsar, pulsar-geo, kafka, rabbitmq, redis, redis-geo;
          prometheus, prometheus-current, victoria-metrics and nutcracker (programs only)
flags, also allowed after the verb:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "stack:", oneLine(err))
		os.Exit(1)
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cfg := stack.Config{Log: stderr, PulsarConf: make(map[string]string), RedisConf: make(map[string]string)}
	flags := flag.NewFlagSet("stack", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.IntVar(&cfg.PulsarPort, "pulsar.port", 0, "fixed `port` of the broker; 0 takes a free one")
	flags.IntVar(&cfg.PulsarAdminPort, "pulsar.admin-port", 0, "fixed `port` of the admin API; 0 takes a free one")
	flags.Func("pulsar.conf", "set `KEY=VALUE` in standalone.conf, may be repeated (journalSyncData=false)", setter(cfg.PulsarConf))
	flags.IntVar(&cfg.RedisPort, "redis.port", 0, "fixed `port` of the service redis; 0 takes a free one")
	flags.Func("redis.conf", "set `KEY=VALUE` in redis.conf, may be repeated (appendonly=yes, requirepass=secret)", setter(cfg.RedisConf))
	// Flags may stand before and after the verb; the rest are the verb and services.
	var words []string
	for rest := args; ; rest = flags.Args()[1:] {
		if err := flags.Parse(rest); err != nil {
			return err
		}
		if flags.NArg() == 0 {
			break
		}
		words = append(words, flags.Arg(0))
	}
	if len(words) == 0 {
		return errors.New("want a verb: up, down or fetch (-h explains)")
	}
	verb, services := words[0], words[1:]
	if verb == "down" && os.Getenv("AVIARY_STACK") == "" {
		return stack.DownAll(ctx, cfg)
	}
	s, err := stack.New(cfg)
	if err != nil {
		return err
	}
	switch verb {
	case "up":
		lines, err := s.Up(ctx, services...)
		if err != nil {
			return err
		}
		for _, line := range lines {
			fmt.Fprintln(stdout, line)
		}
		return nil
	case "down":
		return s.Down(ctx)
	case "fetch":
		return s.Fetch(ctx, services...)
	}
	return fmt.Errorf("unknown verb %q: want up, down or fetch", verb)
}

// setter returns the function of a flag that puts KEY=VALUE into conf.
func setter(conf map[string]string) func(string) error {
	return func(s string) error {
		key, value, found := strings.Cut(s, "=")
		if !found {
			return errors.New("want KEY=VALUE")
		}
		conf[key] = value
		return nil
	}
}
