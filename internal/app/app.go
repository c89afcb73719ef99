// Package app runs a service as a process: command line, configuration, logger, admin server,
// signals, actors and their ordered stop.
//
// The main function of a binary calls [Main]. The service is a function that gets a [Runtime],
// registers its parts there and returns. Then the process runs until a signal, [Runtime.Shutdown] or
// the first failure of a part. The package must not import a service.
package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/internal/stdlog"
	"github.com/aviaryhq/aviary/internal/trial"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Program describes a binary.
type Program[T Configuration] struct {
	Name     string   // of the binary, also the prefix of its environment variables
	Summary  string   // one line for -help
	Defaults func() T // a fresh default configuration
	// Flags registers the service's own flags, bound to fields of the configuration with their
	// present value as default. May be nil. It is called more than once.
	Flags func(fs *flag.FlagSet, cfg *T)
	// Build dials, opens and registers the service's parts, and returns. Its ctx ends when the
	// process is asked to stop during Build: pass it to calls that wait, not to the parts, which
	// have their own. What Build has registered before an error is stopped in order.
	Build func(ctx context.Context, rt *Runtime, cfg T) error
	// Connect returns the trials of -config.connect: of the servers, topics and permissions that the
	// service uses. end is called after the last trial. May be nil: then there is nothing to try.
	Connect func(cfg T) (trials []trial.Trial, end func())
	// Setup returns what -setup creates at Pulsar. May be nil: then there is nothing to create.
	Setup func(ctx context.Context, cfg T) ([]setup.Cluster, error)
}

// Main runs a program as this process, from the command line to the exit status: 0 after an orderly
// stop, 1 after a failure, 2 for a wrong command line. The first SIGTERM or SIGINT asks for the
// ordered stop, the second exits at once. SIGHUP reads the configuration again, see [OnReload].
func Main[T Configuration](p Program[T]) int {
	signals, hangups := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	signal.Notify(hangups, syscall.SIGHUP)
	// Without this, the first line that is logged after its reader has gone would end the process
	// at once, even in the middle of its stop. With it, the write fails, and the service continues
	// without a log.
	signal.Ignore(syscall.SIGPIPE)
	defer signal.Stop(signals)
	defer signal.Stop(hangups)
	return p.main(process{
		args: os.Args[1:], environ: os.Environ(), stdout: os.Stdout, stderr: os.Stderr, signals: signals, hangups: hangups, exit: os.Exit,
	})
}

// process holds the parts of the operating system that a program uses.
type process struct {
	args, environ  []string
	stdout, stderr io.Writer
	signals        <-chan os.Signal
	hangups        <-chan os.Signal
	exit           func(status int)
}

func (p Program[T]) main(proc process) int {
	spec := config.Spec[T]{
		Name: p.Name, Summary: p.Summary, Defaults: p.Defaults, Flags: p.Flags,
		Args: proc.args, Environ: proc.environ, Usage: proc.stderr,
	}
	loaded, err := load(proc.signals, spec)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, config.ErrUsage):
		return exitUsage
	case err != nil:
		proc.warn(p.Name, loaded.Warnings) // a variable with a wrong name may be why a key is missing
		return proc.fail("", err)
	}
	switch loaded.Action {
	case config.Version:
		return proc.print(fmt.Sprintf("%s %s\n", p.Name, ThisBuild()))
	case config.PrintKeys:
		proc.warn(p.Name, loaded.Warnings)
		return proc.print(config.Keys(p.Name, loaded.Config))
	case config.Check:
		proc.warn(p.Name, loaded.Warnings)
		return proc.print(fmt.Sprintf("%s: the configuration is valid (%s)\n", p.Name, loaded.Source))
	case config.Connect:
		proc.warn(p.Name, loaded.Warnings)
		return p.connect(proc, loaded.Config, loaded.Source)
	case config.Setup, config.SetupPlan:
		proc.warn(p.Name, loaded.Warnings)
		return p.setup(proc, loaded.Config, loaded.Source, loaded.Action == config.Setup)
	case config.Print:
		proc.warn(p.Name, loaded.Warnings)
		text, err := config.YAML(loaded.Config)
		if err != nil {
			return proc.fail(p.Name, err)
		}
		return proc.print(string(text))
	case config.Ready:
		text, err := queryReady(loaded.Config.common().Admin.Listen)
		if err != nil {
			return proc.fail(p.Name, err)
		}
		return proc.print(text)
	}

	out := newLogWriter(proc.stderr)
	logging := loaded.Config.common().Log
	logging.Format = formatFor(logging.Format, proc.stderr)
	log, err := newLogger(logging, out)
	if err != nil {
		return proc.fail(p.Name, err)
	}
	defer func() { _ = log.Sync() }() // a terminal or pipe cannot be synced, and says so
	stdlog.Redirect(log)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case s := <-proc.signals:
			out.stopping() // first: the log's reader may have stopped reading
			log.Info("received a signal", zap.Stringer("signal", s))
			cancel()
		case <-done:
			return
		}
		select {
		case s := <-proc.signals:
			_, _ = fmt.Fprintf(out, "%s: second signal (%s), exiting at once without finishing the stop\n", p.Name, s)
			proc.exit(exitFailed)
		case <-done:
		}
	}()
	for _, warning := range loaded.Warnings {
		log.Warn(warning)
	}
	build := ThisBuild()
	log.Info("starting", zap.String("service", p.Name), zap.String("version", build.Version), zap.String("commit", build.Commit),
		zap.String("go", build.Go), zap.String("config", loaded.Source))
	rt := newRuntime(p.Name, log, loaded.Config.common().ShutdownTimeout)
	err = p.run(ctx, rt, loaded.Config, func(ctx context.Context) {
		context.AfterFunc(ctx, out.stopping)
		for {
			select {
			case <-proc.hangups:
				reload(ctx, rt, spec)
			case <-ctx.Done():
				return
			}
		}
	})
	if err != nil {
		log.Error("stopped after a failure", zap.Error(rt.unlogged()))
		return exitFailed
	}
	log.Info("stopped")
	return exitOK
}

// load reads the configuration. A file that blocks, such as a pipe without a writer, does not keep
// the process from ending.
func load[T any](signals <-chan os.Signal, spec config.Spec[T]) (config.Loaded[T], error) {
	type result struct {
		loaded config.Loaded[T]
		err    error
	}
	done := make(chan result, 1)
	go func() {
		loaded, err := config.Load(spec)
		done <- result{loaded, err}
	}()
	select {
	case r := <-done:
		return r.loaded, r.err
	case s := <-signals:
		return config.Loaded[T]{}, fmt.Errorf("%s: %s while the configuration was being read", spec.Name, s)
	}
}

// RunProgram runs a program inside this process, without command line or signals, until ctx ends,
// and returns when every part has stopped. The configuration is taken as it is.
func RunProgram[T Configuration](ctx context.Context, p Program[T], cfg T, log *zap.Logger) error {
	return p.run(ctx, newRuntime(p.Name, log, cfg.common().ShutdownTimeout), cfg, func(context.Context) {})
}

// run runs the program. follow runs at the same time, until the stop begins.
func (p Program[T]) run(ctx context.Context, rt *Runtime, cfg T, follow func(context.Context)) error {
	rt.config.Store(any(cfg))
	return rt.run(ctx, func(ctx context.Context) error {
		go follow(ctx)
		if err := rt.serveAdmin(ctx, cfg.common().Admin.Listen); err != nil {
			return err
		}
		return p.Build(ctx, rt, cfg)
	})
}

func (proc process) print(text string) int {
	if _, err := io.WriteString(proc.stdout, text); err != nil {
		return exitFailed
	}
	return exitOK
}

// fail reports an error for people, before there is a logger.
func (proc process) fail(name string, err error) int {
	if name != "" {
		err = fmt.Errorf("%s: %w", name, err)
	}
	_, _ = fmt.Fprintln(proc.stderr, err)
	return exitFailed
}

func (proc process) warn(name string, warnings []string) {
	for _, warning := range warnings {
		_, _ = fmt.Fprintf(proc.stderr, "%s: warning: %s\n", name, warning)
	}
}
