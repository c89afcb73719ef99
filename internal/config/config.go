// Package config loads a binary's configuration: defaults, then strict YAML, then the environment,
// then flags, then validation.
//
// A configuration is a plain struct with yaml tags. An environment variable, named after the binary
// and the key's path, sets one key (NIGHTINGALE_PULSAR_URL sets pulsar.url). All mistakes are reported
// at once, each with its YAML path and line and what would be right. The package imports pkg/secret
// only.
package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// maxFileSize bounds the configuration file.
const maxFileSize = 8 << 20

// A Defaulter gives the elements of lists and maps, and optional sections, their defaults before
// they are decoded. The configuration as a whole has its defaults from Spec.Defaults.
type Defaulter interface{ SetDefaults() }

// Kinds is a map whose keys name the types of its elements, as in source: {kafka: {...}}. The method
// returns a new element, a pointer to a section with its defaults, for each key that may be given.
type Kinds interface{ Kinds() map[string]any }

// Spec says what to load and from where.
type Spec[T any] struct {
	Name     string                  // of the binary; the environment's prefix is its upper case
	Summary  string                  // one line for -help; may be empty
	Defaults func() T                // a fresh value at each call: it is changed in place
	Flags    func(*flag.FlagSet, *T) // registers the service's own flags, bound to fields with the field's present value as default; may be nil, is called twice
	Args     []string                // without the program's name
	Environ  []string                // as os.Environ returns it
	Usage    io.Writer               // where -help and the errors of flags are written
	// Again says that a running process reads its configuration again. A file without any key is
	// then a fault: most probably it is being written at this moment, and everything that it had
	// set would be lost.
	Again bool
}

// Action is what the command line asks for.
type Action int

// The actions.
const (
	Run       Action = iota // run the service
	Check                   // -config.check: validate only
	Connect                 // -config.connect: validate, and try what the configuration names
	Setup                   // -setup: create what the service needs at Pulsar
	SetupPlan               // -setup.plan: print what -setup would change
	Print                   // -config.print with -config.file: print the effective configuration
	PrintKeys               // -config.print without a file: print every key with its meaning
	Version                 // -version: print the version; nothing is loaded
	Ready                   // -ready: whether the running service with this configuration is ready
)

// Warner is a configuration that can be valid and still not be what was meant.
type Warner interface {
	// Warnings returns what may be wrong, each with the key's path first. It is called with a valid
	// configuration.
	Warnings() []string
}

// Loaded is a valid configuration.
type Loaded[T any] struct {
	Config   T
	Action   Action
	Source   string   // what it was made of, such as "file x.yaml, environment"
	Warnings []string // about environment variables that set nothing but look as if they should, and what a [Warner] says
}

// ErrUsage is wrapped by errors of the command line itself, which are already explained on
// Spec.Usage. flag.ErrHelp is returned after -help.
var ErrUsage = errors.New("wrong usage")

// Load makes the configuration. Errors are a *[Error] with every fault, [ErrUsage] or
// [flag.ErrHelp].
func Load[T any](spec Spec[T]) (Loaded[T], error) {
	loaded := Loaded[T]{Config: spec.Defaults()}
	var common commonFlags
	// The command line is read twice: first to find the file, last to override it. The first
	// reading binds a value that is thrown away.
	scratch := spec.Defaults()
	if err := spec.parse(&common, &scratch); err != nil {
		return loaded, err
	}
	if loaded.Action = common.action(); loaded.Action == Version {
		return loaded, nil
	}

	d := &decoder{origins: map[string]string{}, expanded: map[*yaml.Node]yaml.Kind{}, followed: map[*yaml.Node]bool{}, root: reflect.TypeFor[T]()}
	root := reflect.ValueOf(&loaded.Config)
	var sources []string
	if common.file != "" {
		sources = append(sources, "file "+common.file)
		if text, err := readFile(common.file); err != nil {
			d.fault("", "", "cannot read the file: %s", err)
		} else {
			if keys := d.file(text, root, lookupIn(spec.Environ)); !keys && spec.Again {
				d.fault("", "", "the file is empty: it may not be written in full yet; to go back to the defaults write {}")
			}
		}
	}
	used, warnings := spec.environment(d, root.Elem())
	loaded.Warnings = warnings
	if used {
		sources = append(sources, "environment")
	}
	if common.given {
		sources = append(sources, "flags")
	}
	if err := spec.parse(&common, &loaded.Config); err != nil {
		return loaded, err
	}
	if common.level != "" {
		if v, ok := find(root.Elem(), "log.level"); ok {
			d.text(common.level, v, "log.level", "-log.level")
		} else {
			d.fault("log.level", "-log.level", "is not a key of this configuration")
		}
	}
	if loaded.Source = strings.Join(sources, ", "); loaded.Source == "" {
		loaded.Source = "defaults"
	}
	if faults := d.validate(root); len(faults) > 0 {
		return loaded, &Error{Name: spec.Name, Source: loaded.Source, Faults: faults}
	}
	if w, ok := any(loaded.Config).(Warner); ok {
		loaded.Warnings = append(loaded.Warnings, w.Warnings()...)
	}
	return loaded, nil
}

// validate adds the faults of Validate to those of decoding. It leaves out keys that could not be
// decoded: they still hold their defaults, so Validate would report values that are not in the
// configuration.
func (d *decoder) validate(root reflect.Value) []*FieldError {
	faults := distinct(d.faults)
	failed := map[string]bool{}
	for _, fault := range faults {
		failed[fault.Path] = true
	}
	for _, fault := range Validate(root.Interface()) {
		if !failed[fault.Path] {
			fault.Origin = d.origins[fault.Path]
			faults = append(faults, fault)
		}
	}
	return faults
}

// commonFlags are the flags of every binary.
type commonFlags struct {
	file, level           string
	check, connect, print bool
	setup, setupPlan      bool
	ready, version        bool
	given                 bool // some flag other than these was given, or -log.level
}

func (c commonFlags) action() Action {
	switch {
	case c.version:
		return Version
	case c.print && c.file == "":
		return PrintKeys
	case c.print:
		return Print
	case c.connect:
		return Connect
	case c.check:
		return Check
	case c.setupPlan:
		return SetupPlan
	case c.setup:
		return Setup
	case c.ready:
		return Ready
	}
	return Run
}

func (s Spec[T]) parse(common *commonFlags, cfg *T) error {
	fs := flag.NewFlagSet(s.Name, flag.ContinueOnError)
	fs.SetOutput(s.Usage)
	*common = commonFlags{}
	fs.StringVar(&common.file, "config.file", "", "read the configuration from the YAML `file`; default: the defaults of all keys")
	fs.BoolVar(&common.check, "config.check", false, "validate the configuration and exit")
	fs.BoolVar(&common.connect, "config.connect", false, "validate the configuration, try its servers, credentials, topics and permissions, and exit")
	fs.BoolVar(&common.print, "config.print", false,
		"print every key with meaning, default and environment variable, and exit; with -config.file: print the effective configuration, without secrets")
	fs.StringVar(&common.level, "log.level", "", "lowest `level` that is logged: debug, info, warn or error; overrides the key log.level")
	fs.BoolVar(&common.setup, "setup", false, "create the tenants, namespaces, topics and subscriptions that the service needs at Pulsar, and exit")
	fs.BoolVar(&common.setupPlan, "setup.plan", false, "print the changes that -setup would make, and exit")
	fs.BoolVar(&common.ready, "ready", false, "print whether the running service at admin.listen is ready, and exit with status 0 if it is, else 1")
	fs.BoolVar(&common.version, "version", false, "print the version and exit")
	if s.Flags != nil {
		s.Flags(fs, cfg)
	}
	fs.Usage = func() {
		// Errors and help go to Usage. If that fails, there is no other place to report it.
		_, _ = fmt.Fprintf(s.Usage, "usage: %s [flags]\n", s.Name)
		if s.Summary != "" {
			_, _ = fmt.Fprintf(s.Usage, "%s\n", s.Summary)
		}
		_, _ = fmt.Fprint(s.Usage, "\n")
		fs.PrintDefaults()
		_, _ = fmt.Fprintf(s.Usage, "\nAn environment variable sets one key: %s sets %s.\n", EnvName(s.Name, "log.level"), "log.level")
	}
	if err := fs.Parse(s.Args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	var err error
	switch {
	case fs.NArg() > 0:
		err = fmt.Errorf("%w: unexpected argument %q", ErrUsage, fs.Arg(0))
	case common.setup && common.action() != Setup:
		err = fmt.Errorf("%w: -setup together with a flag that does something else", ErrUsage)
	}
	if err != nil {
		_, _ = fmt.Fprintln(s.Usage, err)
		fs.Usage()
		return err
	}
	fs.Visit(func(f *flag.Flag) {
		others := []string{"config.file", "config.check", "config.connect", "config.print", "setup", "setup.plan", "ready", "version"}
		if f.Name == "log.level" || !slices.Contains(others, f.Name) {
			common.given = true
		}
	})
	return nil
}

// EnvName returns the environment variable that sets the key at path for a binary.
func EnvName(binary, path string) string {
	return strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(binary + "_" + path))
}

// environment sets the keys whose variables are given.
func (s Spec[T]) environment(d *decoder, root reflect.Value) (used bool, warnings []string) {
	paths := map[string]string{}
	var names []string
	for _, path := range leaves(root.Type(), "") {
		name := EnvName(s.Name, path)
		if other, taken := paths[name]; taken {
			d.fault(path, "", "shares the environment variable %s with %s: rename one of the keys", name, other)
		}
		paths[name] = path
		names = append(names, name)
	}
	lookup := lookupIn(s.Environ)
	for _, name := range names {
		if text, ok := lookup(name); ok {
			used = true
			v, _ := find(root, paths[name])
			d.text(text, v, paths[name], "$"+name)
		}
	}
	for _, variable := range s.Environ {
		name, _, _ := strings.Cut(variable, "=")
		if _, known := paths[name]; known || !strings.HasPrefix(name, EnvName(s.Name, "")) || fromKubernetes(name) {
			continue
		}
		warning := fmt.Sprintf("the environment variable %s sets no key", name)
		if near, ok := nearest(name, names); ok {
			warning += fmt.Sprintf("; did you mean %s?", near)
		}
		warnings = append(warnings, warning)
	}
	slices.Sort(warnings)
	return used, warnings
}

// fromKubernetes recognises the variables that Kubernetes puts into every pod for a Service that
// happens to share the binary's name: NIGHTINGALE_SERVICE_HOST, NIGHTINGALE_SERVICE_PORT_HTTP,
// NIGHTINGALE_PORT, NIGHTINGALE_PORT_9201_TCP_ADDR.
func fromKubernetes(name string) bool {
	return regexp.MustCompile(`_SERVICE_(HOST|PORT)(_|$)|_PORT$|_PORT_\d+_(TCP|UDP|SCTP)(_|$)`).MatchString(name)
}

func lookupIn(environ []string) func(string) (string, bool) {
	values := make(map[string]string, len(environ))
	for _, variable := range environ {
		if name, value, ok := strings.Cut(variable, "="); ok {
			values[name] = value
		}
	}
	return func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	}
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if errors.Is(err, syscall.EISDIR) {
		return nil, fmt.Errorf("%s is a directory: name the file in it", path)
	}
	if err == nil && len(text) > maxFileSize {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFileSize)
	}
	return text, err
}

// YAML returns the configuration as YAML with its secrets redacted: those of type secret.String,
// and passwords and queries inside URLs.
func YAML(cfg any) ([]byte, error) {
	var n yaml.Node
	if err := n.Encode(cfg); err != nil {
		return nil, fmt.Errorf("cannot write the configuration as YAML: %w", err)
	}
	redactNode(&n)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := errors.Join(encoder.Encode(&n), encoder.Close()); err != nil {
		return nil, fmt.Errorf("cannot write the configuration as YAML: %w", err)
	}
	return out.Bytes(), nil
}
