package eventbridge

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/eventbridge/api"
	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/engine"
	"github.com/aviaryhq/aviary/internal/eventbridge/ingest"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/internal/httpserver/bearer"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// Config is the configuration of eventbridge.
type Config struct {
	app.Common `yaml:",inline"`
	// Pulsar is the cluster that holds everything. With admin_url, topics are created with their
	// partitions, and backlogs are known.
	Pulsar messaging.Config `yaml:"pulsar"`
	// HTTP is the server for senders, the management API and the console.
	HTTP HTTPConfig `yaml:"http"`
	// Roles are the roles of this process: preprocessor, engine, processor. Default: all.
	Roles Roles `yaml:"roles"`
	// Instance is the name of this process. No two running processes may have the same name.
	// Default: the host's name and the process' id.
	Instance string `yaml:"instance"`
	// Topics says where the topics are.
	Topics TopicsConfig `yaml:"topics"`
	// API says who may manage buses and subscribers.
	API APIConfig `yaml:"api"`
	// Secrets says how the secrets of subscribers are encrypted in the registry.
	Secrets SecretsConfig `yaml:"secrets"`
	// Ingest, Engine and Processor bound what each role does.
	Ingest    ingest.Config   `yaml:"ingest"`
	Engine    engine.Config   `yaml:"engine"`
	Processor delivery.Config `yaml:"processor"`
	// Targets says which addresses webhooks may have. Connections are the systems that targets may
	// use.
	Targets     target.Config      `yaml:"targets"`
	Connections target.Connections `yaml:"connections"`

	// Setup says what -setup creates at Pulsar. Only -setup uses it.
	Setup setup.Policies `yaml:"setup"`

	// These are only on the command line, see Flags.
	Export, Import string `yaml:"-"`
	DryRun, Prune  bool   `yaml:"-"`
	Reencrypt      bool   `yaml:"-"`
	// Timeout of a command: to read the registry, and for each change.
	Timeout time.Duration `yaml:"-"`
}

// HTTPConfig is the server for senders, the management API and the console.
type HTTPConfig struct {
	// Listen is the address, host:port; port 0 lets the system choose. Default 127.0.0.1:9601.
	Listen string `yaml:"listen"`
	// Hosts are names that clients may use for this server while it has no authentication. IP
	// addresses, names without a dot, and names in localhost, local, internal, svc and test are
	// always allowed. The owner of any other name could make it resolve to this server's address.
	// "*" allows every name. Default: none.
	Hosts []string `yaml:"hosts"`
	// WebConfigFile is a web configuration file of Prometheus' exporter-toolkit: TLS and client
	// certificates. Default: none.
	WebConfigFile string `yaml:"web_config_file"`
}

// TopicsConfig says where the topics are.
type TopicsConfig struct {
	// Namespace is tenant/namespace of all topics. Default public/default.
	Namespace string `yaml:"namespace"`
}

// APIConfig says who may manage buses and subscribers, and use the console.
type APIConfig struct {
	// Tokens may use the API. Default: none, and then everyone who reaches the server may use it.
	Tokens []APIToken `yaml:"tokens"`
	// Open lets everyone who reaches the server manage it although ingest.tenants authenticates
	// senders. Default false: then tokens must be given, too.
	Open bool `yaml:"open"`
}

// APIToken is a bearer token, or a file with one token on each line, which is read again every ten
// seconds.
type APIToken struct {
	// Token is a bearer token. Give either token or token_file.
	Token secret.String `yaml:"token"`
	// TokenFile names a file with one token on each line. The file is read again every ten seconds.
	TokenFile string `yaml:"token_file"`
	// Role is admin or viewer. A viewer may read, and test patterns. Default viewer.
	Role string `yaml:"role"`
}

// SecretsConfig says how secrets of subscribers are stored.
type SecretsConfig struct {
	// KeyFile holds AES-256 keys, one on each line: its id, a space, and 32 random bytes in base64.
	// The first key encrypts. Default: none, and then everyone who can read the registry's topic
	// can read the secrets.
	KeyFile string `yaml:"key_file"`
}

// keys reads the keys. It returns nil if there is no file.
func (c SecretsConfig) keys() (*store.Keys, error) {
	if c.KeyFile == "" {
		return nil, nil //nolint:nilnil // secrets are stored as plain text
	}
	text, err := secret.ReadFile(c.KeyFile)
	if err != nil {
		return nil, config.Fault("secrets.key_file", "%v", err)
	}
	keys, err := store.ParseKeys(text)
	if err != nil {
		return nil, config.Fault("secrets.key_file", "%v", err)
	}
	return keys, nil
}

// maxInstance bounds the name of an instance, in bytes.
const maxInstance = 255

// The roles.
const (
	RolePreprocessor = "preprocessor" // takes events by HTTP
	RoleEngine       = "engine"       // matches them against rules
	RoleProcessor    = "processor"    // delivers them
)

// Roles of a process. In the environment and on the command line they are separated by commas.
type Roles []string

// Has reports whether a role is one of them.
func (r Roles) Has(role string) bool { return slices.Contains(r, role) }

// String joins the roles by commas.
func (r *Roles) String() string { return strings.Join(*r, ",") }

// Set takes roles joined by commas.
func (r *Roles) Set(text string) error {
	*r = strings.Split(text, ",")
	return nil
}

// DefaultConfig returns the defaults, for a Pulsar on this machine.
func DefaultConfig() Config {
	return Config{
		Common:    app.DefaultCommon("127.0.0.1:9602"),
		Pulsar:    messaging.DefaultConfig(),
		HTTP:      HTTPConfig{Listen: "127.0.0.1:9601"},
		Roles:     Roles{RolePreprocessor, RoleEngine, RoleProcessor},
		Topics:    TopicsConfig{Namespace: "public/default"},
		Ingest:    ingest.DefaultConfig(),
		Engine:    engine.DefaultConfig(),
		Processor: delivery.DefaultConfig(),
		Setup:     setup.Defaults(),
		Timeout:   30 * time.Second,
	}
}

// Flags registers -roles, and the flags of export, import and reencrypt, which end the process when
// they are done.
func Flags(fs *flag.FlagSet, cfg *Config) {
	fs.Var(&cfg.Roles, "roles", "roles of this process, separated by commas: preprocessor, engine, processor")
	// A command runs next to a service, whose admin server has the usual port.
	command := func(set func(string) error) func(string) error {
		return func(text string) error {
			cfg.Admin.Listen = "127.0.0.1:0"
			return set(text)
		}
	}
	file := func(name *string) func(string) error {
		return command(func(text string) error {
			*name = text
			return nil
		})
	}
	fs.Func("export", "write the registry as YAML to this `file`, - for standard output, and exit", file(&cfg.Export))
	fs.Func("import", "create and change buses and subscribers to match this YAML `file`, and exit", file(&cfg.Import))
	fs.BoolVar(&cfg.Prune, "prune", cfg.Prune, "with -import: delete what the file does not have")
	fs.BoolFunc("reencrypt", "encrypt all secrets of the registry by the first key of secrets.key_file, and exit", command(func(text string) (err error) {
		cfg.Reencrypt, err = strconv.ParseBool(text)
		return err
	}))
	fs.DurationVar(&cfg.Timeout, "timeout", cfg.Timeout, "with -export, -import or -reencrypt: time limit for reading the registry, and for each change")
	fs.BoolVar(&cfg.DryRun, "dry-run", cfg.DryRun, "with -import: only show what would change")
}

// Validate checks the top-level keys; each section validates itself.
func (c Config) Validate() error {
	errs := []error{config.CheckListen("http.listen", c.HTTP.Listen), config.CheckApart("http.listen", c.HTTP.Listen, "admin.listen", c.Admin.Listen)}
	for i, name := range c.HTTP.Hosts {
		if name != "*" && (name == "" || strings.ContainsAny(name, "*:/@ ")) {
			errs = append(errs, config.Fault(fmt.Sprintf("http.hosts[%d]", i), `must be a name without a port, such as events.example.com, or "*" for every name, got %q`, name))
		}
	}
	if len(c.Roles) == 0 {
		errs = append(errs, config.Fault("roles", "must have at least one of preprocessor, engine, processor"))
	}
	for i, role := range c.Roles {
		path := fmt.Sprintf("roles[%d]", i)
		errs = append(errs, config.CheckOneOf(path, role, RolePreprocessor, RoleEngine, RoleProcessor))
		if slices.Contains(c.Roles[:i], role) {
			errs = append(errs, config.Fault(path, "occurs twice: %q", role))
		}
	}
	if !messaging.ValidTopic("persistent://"+c.Topics.Namespace+"/x") || strings.Count(c.Topics.Namespace, "/") != 1 {
		errs = append(errs, config.Fault("topics.namespace", "must be tenant/namespace, got %q", c.Topics.Namespace))
	}
	if len(c.Ingest.Tenants) > 0 && len(c.API.Tokens) == 0 && !c.API.Open {
		errs = append(errs, config.Fault("api.tokens",
			"must have a token if ingest.tenants has tenants: otherwise clients that may not send events could read and change everything. Set api.open if something else protects the API"))
	}
	if name := c.instance(); len(name) > maxInstance || strings.Contains(name, "/") {
		errs = append(errs, config.Fault("instance", "must have at most %d bytes and no /, got %q", maxInstance, name))
	}
	return errors.Join(append(errs, c.checkFlags(), c.checkFiles(), c.Setup.RefuseEviction("setup"))...)
}

// checkFiles returns what is wrong with the files that the configuration names, even if the
// sections that name them have other faults.
func (c Config) checkFiles() error {
	var errs []error
	if c.Roles.Has(RolePreprocessor) {
		errs = append(errs, c.Ingest.CheckFiles())
	}
	_, err := c.API.tokens(zap.NewNop())
	errs = append(errs, err)
	if file := c.HTTP.WebConfigFile; file != "" {
		if err := web.Validate(file); err != nil {
			errs = append(errs, config.Fault("http.web_config_file", "%s: %v", file, err))
		}
	}
	_, err = c.Secrets.keys()
	return errors.Join(append(errs, err)...)
}

// checkFlags returns what is wrong with the combination of flags.
func (c Config) checkFlags() error {
	asked := 0
	for _, one := range []bool{c.Export != "", c.Import != "", c.Reencrypt} {
		if one {
			asked++
		}
	}
	switch {
	case asked > 1:
		return errors.New("only one of -export, -import and -reencrypt can be given")
	case c.Import == "" && (c.DryRun || c.Prune):
		return errors.New("-dry-run and -prune are for -import")
	case asked > 0 && c.Timeout <= 0:
		return fmt.Errorf("-timeout must be > 0, got %s", c.Timeout)
	case c.Reencrypt && c.Secrets.KeyFile == "":
		return config.Fault("secrets.key_file", "must be given with -reencrypt")
	}
	return nil
}

// Validate returns every fault of one token.
func (t APIToken) Validate() error {
	var errs []error
	if (t.Token == "") == (t.TokenFile == "") {
		errs = append(errs, config.Fault("token", "give either token or token_file"))
	}
	if t.Role != "" {
		errs = append(errs, config.CheckOneOf("role", t.Role, api.RoleAdmin, api.RoleViewer))
	}
	return errors.Join(errs...)
}

// instance returns the name of this process.
func (c Config) instance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "eventbridge"
	}
	return cmp.Or(c.Instance, fmt.Sprintf("%s-%d", host, os.Getpid()))
}

// tokens reads the tokens of the API. It returns nil if there are none: the API then needs no
// token.
func (c APIConfig) tokens(log *zap.Logger) (*bearer.Tokens, error) {
	if len(c.Tokens) == 0 {
		return nil, nil //nolint:nilnil // no token is needed
	}
	sources := make([]bearer.Source, 0, len(c.Tokens))
	for i, t := range c.Tokens {
		key := fmt.Sprintf("api.tokens[%d]", i)
		source := bearer.Source{Tenant: cmp.Or(t.Role, api.RoleViewer), File: t.TokenFile, FileKey: key + ".token_file"}
		if t.Token != "" {
			source.Tokens = []bearer.Configured{{Text: t.Token, Key: key + ".token"}}
		}
		sources = append(sources, source)
	}
	return bearer.NewTokens(log, sources)
}

// fixed returns a fault for each changed section that a reload cannot change.
func (c Config) fixed(changed Config) error {
	now, then := c, changed
	now.Ingest.Tenants, then.Ingest.Tenants = nil, nil
	then.Common, then.Setup = now.Common, now.Setup // app.OnReload compares Common; only -setup uses Setup
	var errs []error
	for _, key := range config.Changed(now, then) {
		errs = append(errs, config.Fault(key, "can change only at a restart; a reload changes only ingest.tenants"))
	}
	return errors.Join(errs...)
}
