package stack

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/test/stack/install"
	"github.com/aviaryhq/aviary/test/stack/process"
)

const modulePath = "github.com/aviaryhq/aviary"

// Config says where a [Stack] keeps its things and how its servers are set up. The zero value is
// usable.
type Config struct {
	// Log receives progress, one line per event. Default: nothing is logged.
	Log io.Writer
	// CacheDir holds downloads, state and data. Default: "aviary" in the user's cache folder.
	CacheDir string
	// Checkout is the folder whose servers these are. Default: the module root above the working
	// directory.
	Checkout string
	// Name tells apart the stacks of one checkout, which share nothing: "" is what stack-up starts,
	// the others are Demo, Smoke and Test. Default: AVIARY_STACK from the environment where
	// Checkout is not given, else "".
	Name string
	// PulsarPort and PulsarAdminPort fix the ports of the service "pulsar". Default 0: any free
	// ones.
	PulsarPort, PulsarAdminPort int
	// PulsarConf overrides keys of standalone.conf in "pulsar" and "pulsar-geo". Default: none.
	PulsarConf map[string]string
	// PulsarMemory and PulsarGC are options of the JVM of "pulsar". Default: those of the
	// variables PULSAR_MEM and PULSAR_GC, else 1 GiB of heap and G1.
	PulsarMemory, PulsarGC string
	// PulsarJVM are further options of the JVM of "pulsar". Default: none.
	PulsarJVM string
	// RedisPort fixes the port of the service "redis". Default 0: any free one.
	RedisPort int
	// RedisConf sets keys of redis.conf in "redis" and "redis-geo". Default: none.
	RedisConf map[string]string
	// Owned has the kernel kill the servers that Up starts should this process die. Default: they
	// outlive it.
	Owned bool
	// PrepareLater leaves Pulsar's preparation for fast starts to the service "pulsar-geo": the
	// first "pulsar" of a machine runs sooner, though it takes longer to start. Default: it is
	// prepared after its download.
	PrepareLater bool
	// BuildNice is added to the niceness of programs that are built. Default 0: they are as urgent
	// as this process.
	BuildNice int
}

// Names of the stacks that a checkout has beside its own.
const (
	Demo  = "demo"  // of make run
	Smoke = "smoke" // of make smoke
	Test  = "test"  // of make test
)

// A Stack starts and stops the servers of one checkout. It is safe for concurrent use; [Stack.Up]
// and [Stack.Down] take turns.
type Stack struct {
	cfg      Config
	log      *process.Progress
	cache    string
	packages install.Installer
	prefix   string // of the folders of this stack in all containers
	dir      string
	tests    bool // it is the checkout's own: what it starts is for tests, not for demos and benchmarks
	space    func(dir string) (free int64, err error)
	turn     chan struct{} // holds an item while Up or Down is under way
}

// New returns the stack of a checkout. It starts nothing.
func New(cfg Config) (*Stack, error) { return newStack(cfg, pidNamespace()) }

func newStack(cfg Config, namespace string) (*Stack, error) {
	if cfg.CacheDir == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("no cache folder, set HOME or XDG_CACHE_HOME: %w", err)
		}
		cfg.CacheDir = filepath.Join(dir, "aviary")
	}
	tests := cfg.Checkout == ""
	if tests {
		dir, err := moduleRoot()
		if err != nil {
			return nil, err
		}
		cfg.Checkout = dir
		if cfg.Name == "" {
			cfg.Name = os.Getenv("AVIARY_STACK")
		}
	}
	id := cfg.Checkout
	if cfg.Name != "" {
		id += "#" + cfg.Name
	}
	sum := sha256.Sum256([]byte(id))
	prefix := filepath.Join(cfg.CacheDir, "stack", hex.EncodeToString(sum[:6]))
	dir := prefix
	if namespace != "" {
		dir += "-" + namespace
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot create the state folder: %w", err)
	}
	log := process.NewProgress(cfg.Log)
	return &Stack{
		cfg: cfg, log: log, cache: cfg.CacheDir, packages: install.Installer{Cache: cfg.CacheDir, Log: log}, prefix: prefix, dir: dir,
		tests: tests, space: install.Free, turn: make(chan struct{}, 1),
	}, nil
}

// spaceNeeded is what must be free where servers of tests keep their data: tests write up to 3 GB at
// a time, and a server whose disk is full fails them for reasons that are hard to see.
const spaceNeeded = 5 << 30

var errSpace = errors.New("not enough disk for the servers of tests")

func (s *Stack) checkSpace() error {
	free, err := s.space(s.cache)
	if err == nil && free < spaceNeeded {
		err = fmt.Errorf("%w: %s has %.1f GiB free, %d GiB are needed; free some, or move the cache with XDG_CACHE_HOME",
			errSpace, s.cache, float64(free)/(1<<30), spaceNeeded>>30)
	}
	return err
}

// Dir returns the folder of the stack's state. No other stack of the machine, or of a container
// that shares its cache folder, has it.
func (s *Stack) Dir() string { return s.dir }

// ReservePort reserves a port for a listener of the caller's own; see [process.ReservePort].
func (s *Stack) ReservePort() (process.Port, error) { return process.ReservePort(s.cache) }

func moduleRoot() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.Contains(string(mod), "module "+modulePath+"\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside a checkout of %s: change into one", wd, modulePath)
		}
	}
}

// A service is one kind of server. Each has a file of its own and a line in [Stack.services].
type service struct {
	name string
	// fetch installs what the service needs; doing it twice is cheap.
	fetch func(ctx context.Context) error
	// missing returns what fetch would fetch.
	missing install.MissingFunc
	// start runs the service in dir and fills rec: processes as soon as they exist, so that a
	// failed start can be cleaned up, and the KEY=VALUE lines. Nil for a service that is only
	// installed.
	start func(ctx context.Context, dir string, rec *record) error
	// check tells whether a service that was started earlier still answers.
	check func(ctx context.Context, rec *record) error
	// installed returns the KEY=VALUE lines of a service without start.
	installed func() ([]string, error)
}

func (s *Stack) services() []service {
	return []service{
		s.pulsarService(), s.geoService(), s.kafkaService(), s.rabbitMQService(), s.redisService(), s.redisGeoService(),
		s.prometheusService(), s.prometheusCurrentService(), s.victoriaMetricsService(), s.nutcrackerService(),
	}
}

func (s *Stack) pick(names []string) ([]service, error) {
	known := s.services()
	if len(names) == 0 {
		return nil, fmt.Errorf("no service named; known: %s", serviceNames(known))
	}
	var picked []service
	seen := make(map[string]bool)
	for _, name := range names {
		found := false
		for _, svc := range known {
			if svc.name != name {
				continue
			}
			found = true
			if !seen[name] {
				picked = append(picked, svc)
			}
			seen[name] = true
		}
		if !found {
			return nil, fmt.Errorf("unknown service %q; known: %s", name, serviceNames(known))
		}
	}
	return picked, nil
}

func serviceNames(services []service) string {
	names := make([]string, len(services))
	for i, svc := range services {
		names[i] = svc.name
	}
	return strings.Join(names, ", ")
}

// Fetch installs what the named services need and starts nothing.
func (s *Stack) Fetch(ctx context.Context, names ...string) error {
	picked, err := s.pick(names)
	if err != nil {
		return err
	}
	for _, svc := range picked {
		if err := svc.fetch(ctx); err != nil {
			return fmt.Errorf("%s: %w", svc.name, err)
		}
	}
	return nil
}

// Missing returns what [Stack.Fetch] would fetch for the named services. It fetches nothing.
func (s *Stack) Missing(ctx context.Context, names ...string) ([]install.Download, error) {
	picked, err := s.pick(names)
	if err != nil {
		return nil, err
	}
	var all []install.Download
	seen := make(map[string]bool)
	for _, svc := range picked {
		missing, err := svc.missing(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", svc.name, err)
		}
		for _, d := range missing {
			if !seen[d.What] {
				all = append(all, d)
			}
			seen[d.What] = true
		}
	}
	return all, nil
}

// Folder returns a folder of the cache that fill has filled, once for each content of the file
// wanted, which says what is in it, and each version of the program that makes it: maker is the
// command that prints that version, such as python3 --version. It is safe for concurrent use, by
// other processes too. A fill that fails leaves nothing.
func (s *Stack) Folder(ctx context.Context, name, wanted string, maker []string, fill func(ctx context.Context, dir string) error) (string, error) {
	return s.packages.Folder(ctx, name, wanted, maker, fill)
}

// Try fetches something from the network, three times at most, with a pause between. It returns the
// last error, or that of ctx when ctx ends.
func (s *Stack) Try(ctx context.Context, fetch func(context.Context) error) error {
	return install.Try(ctx, s.log, fetch)
}

// Jars returns a folder with artifacts of the Maven repository, coordinates with spaces between
// them, and everything they need at run time. It fetches them if the cache does not hold them
// whole. sha512 is the sum of the sums of the jars, as `LC_ALL=C sha512sum * | sha512sum` prints
// it.
func (s *Stack) Jars(ctx context.Context, name, coordinates, sha512 string) (string, error) {
	return s.packages.Jars(ctx, name, coordinates, sha512)
}

// Up makes the named services run and returns their KEY=VALUE lines once all are healthy. Services
// of this checkout that run already are reused. Services outlive this process unless the stack is
// Owned; [Stack.Down] stops them.
func (s *Stack) Up(ctx context.Context, names ...string) ([]string, error) {
	picked, err := s.pick(names)
	if err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s.sweepDead()
	if err := os.MkdirAll(s.dir, 0o755); err != nil { // another container may have taken it for one that is left over
		return nil, err
	}

	lines := make([][]string, len(picked))
	var missing []int
	starts := false
	for i, svc := range picked {
		if svc.start == nil {
			missing = append(missing, i)
			continue
		}
		rec, ok, err := s.reuse(ctx, svc)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", svc.name, err)
		}
		if ok {
			s.log.Printf("%s: already up", svc.name)
			lines[i] = rec.Env
		} else {
			missing, starts = append(missing, i), true
		}
	}
	if s.cfg.Name == Test && starts {
		if err := s.checkSpace(); err != nil {
			return nil, err
		}
	}
	for _, i := range missing {
		if err := picked[i].fetch(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", picked[i].name, err)
		}
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, i := range missing {
		group.Go(func() error {
			var err error
			if picked[i].start == nil {
				lines[i], err = picked[i].installed()
			} else {
				lines[i], err = s.startService(groupCtx, picked[i])
			}
			if err != nil {
				return fmt.Errorf("%s: %w", picked[i].name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var all []string
	for _, l := range lines {
		all = append(all, l...)
	}
	return all, nil
}

// reuse returns the record of a running, healthy service. It stops an unhealthy service and deletes
// its files.
func (s *Stack) reuse(ctx context.Context, svc service) (*record, bool, error) {
	rec, err := s.loadRecord(svc.name)
	if err != nil || rec == nil {
		return nil, false, err
	}
	if rec.alive() {
		checkErr := errors.New("its start was interrupted")
		if len(rec.Env) > 0 {
			checkErr = svc.check(ctx, rec)
		}
		if checkErr == nil {
			if rec.Settings != s.settings(svc.name) {
				return nil, false, errors.New("already up with other settings: run `stack down` first")
			}
			return rec, true, nil
		}
		if ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		s.log.Printf("%s: running but not healthy, restarting it: %v", svc.name, checkErr)
	}
	return nil, false, s.remove(rec)
}

func (s *Stack) startService(ctx context.Context, svc service) ([]string, error) {
	dir := filepath.Join(s.dir, svc.name)
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	rec := &record{Service: svc.name, Settings: s.settings(svc.name), Dir: dir, path: s.recordPath(svc.name)}
	if err := svc.start(ctx, dir, rec); err != nil {
		// The log is what explains the failure: stop the processes, leave the folder to the next Up
		// or Down.
		return nil, errors.Join(err, rec.stop())
	}
	if err := rec.save(); err != nil {
		return nil, errors.Join(err, rec.stop())
	}
	return rec.Env, nil
}

// Down stops everything that Up started from this checkout and removes its data. It is fine when
// nothing is up.
func (s *Stack) Down(ctx context.Context) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for _, svc := range s.services() {
		rec, err := s.loadRecord(svc.name)
		if err == nil && rec != nil {
			s.log.Printf("%s: stopping", svc.name)
			err = s.remove(rec)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", svc.name, err))
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(s.dir, svc.name)))
	}
	s.sweepDead()
	return errors.Join(errs...)
}

// DownAll stops everything that was started from a checkout, whatever started it: its own stack,
// and those of demo, smoke and tests. A demo that runs ends with its servers.
func DownAll(ctx context.Context, cfg Config) error {
	var errs []error
	for _, name := range []string{"", Demo, Smoke, Test} {
		cfg.Name = name
		s, err := New(cfg)
		if err == nil {
			err = s.Down(ctx)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// settings is what a running service must agree with to be reused.
func (s *Stack) settings(service string) string {
	switch service {
	case "pulsar":
		return fmt.Sprint(s.cfg.PulsarPort, s.cfg.PulsarAdminPort, s.cfg.PulsarConf, s.cfg.PulsarMemory, s.cfg.PulsarGC, s.cfg.PulsarJVM)
	case "pulsar-geo":
		return fmt.Sprint(s.cfg.PulsarConf)
	case "redis":
		return fmt.Sprint(s.cfg.RedisPort, s.cfg.RedisConf)
	case "redis-geo":
		return fmt.Sprint(s.cfg.RedisConf)
	}
	return ""
}

// lock keeps other calls of Up and Down out, those of this process and those of others.
func (s *Stack) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	release, err := process.Lock(ctx, s.lockPath(), s.log)
	if err != nil {
		<-s.turn
		return nil, err
	}
	return func() { release(); <-s.turn }, nil
}

func (s *Stack) lockPath() string { return s.dir + ".lock" }
