package config_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/leak"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/secret"
)

func TestMain(m *testing.M) { leak.Main(m.Run) }

type Common struct {
	Log struct {
		Level  string `yaml:"level"`
		Format string `yaml:"format"`
	} `yaml:"log"`
}

func (c Common) Validate() error {
	return config.CheckOneOf("log.level", c.Log.Level, "debug", "info")
}

// section stands for one in pkg/: its Validate knows nothing of package config.
type section struct {
	URL      string        `yaml:"url"`
	Linger   time.Duration `yaml:"linger"`
	Pending  int           `yaml:"pending"`
	Token    secret.String `yaml:"token"`
	Limits   limits        `yaml:"limits"`
	Optional *limits       `yaml:"optional"`
}

func (s *section) Validate() error {
	var errs []error
	if !strings.HasPrefix(s.URL, "pulsar://") {
		errs = append(errs, errors.New(`url: must start with pulsar://, got "`+s.URL+`"`))
	}
	if s.Pending < 0 {
		errs = append(errs, errors.Join(errors.New("pending: must be >= 0"), errors.New("linger: is useless: without pending")))
	}
	return errors.Join(errs...)
}

type limits struct {
	Memory config.Bytes `yaml:"memory"`
	Ratio  float64      `yaml:"ratio"`
	Small  uint8        `yaml:"small"`
	On     bool         `yaml:"on"`
}

func (l limits) Validate() error {
	if l.Ratio > 1 {
		return config.Fault("ratio", "must be <= 1, got %g", l.Ratio)
	}
	return nil
}

type lane struct {
	From    string            `yaml:"from"`
	Workers int               `yaml:"workers"`
	Labels  map[string]string `yaml:"labels"`
}

func (l *lane) SetDefaults() { l.Workers = 4 }

func (l lane) Validate() error {
	if l.From == "" {
		return errors.New("from: must be set")
	}
	return nil
}

type mode string

func (m mode) Validate() error {
	if m != "fast" && m != "safe" {
		return errors.New("must be fast or safe")
	}
	return nil
}

type settings struct {
	Common  `yaml:",inline"`
	Pulsar  section           `yaml:"pulsar"`
	Topics  []string          `yaml:"topics"`
	Lanes   []lane            `yaml:"lanes"`
	ByName  map[string]limits `yaml:"by_name"`
	Labels  map[string]string `yaml:"labels"`
	Timeout time.Duration     `yaml:"shutdown_timeout"`
	Mode    mode              `yaml:"mode"`
	Any     any               `yaml:"any"`
	Port    *int              `yaml:"port"`
	Times   []time.Duration   `yaml:"times"`
	Tail    bool              `yaml:"-"`
}

func defaults() settings {
	var s settings
	s.Log.Level = "info"
	s.Pulsar = section{URL: "pulsar://localhost:6650", Linger: time.Millisecond, Limits: limits{Memory: 64 * config.MiB}}
	s.Topics = []string{"a", "b"}
	s.Labels = map[string]string{"zone": "a"}
	s.Mode = "safe"
	return s
}

// load loads with a file of that text ("" for none); arguments after it.
func load(t *testing.T, text string, environ []string, args ...string) (config.Loaded[settings], string, error) {
	t.Helper()
	if text != "" {
		path := filepath.Join(t.TempDir(), "x.yaml")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		args = append([]string{"-config.file", path}, args...)
	}
	var usage bytes.Buffer
	loaded, err := config.Load(config.Spec[settings]{
		Name: "bird", Summary: "A bird.", Defaults: defaults, Args: args, Environ: environ, Usage: &usage,
		Flags: func(fs *flag.FlagSet, s *settings) {
			fs.BoolVar(&s.Tail, "tail", s.Tail, "follow")
			fs.StringVar((*string)(&s.Mode), "mode", string(s.Mode), "mode")
		},
	})
	return loaded, usage.String(), err
}

// faultsOf returns one line per fault.
func faultsOf(t *testing.T, err error) []string {
	t.Helper()
	var all *config.Error
	require.ErrorAs(t, err, &all)
	var lines []string
	for _, fault := range all.Faults {
		lines = append(lines, fault.Error())
	}
	return lines
}

func TestDefaultsAlone(t *testing.T) {
	loaded, _, err := load(t, "", nil)
	require.NoError(t, err)
	assert.Equal(t, defaults(), loaded.Config)
	assert.Equal(t, config.Run, loaded.Action)
	assert.Equal(t, "defaults", loaded.Source)
}

func TestLaterSourcesWin(t *testing.T) {
	const file = "pulsar: {url: pulsar://file:1, linger: 5ms}\nlog: {level: debug}\nmode: fast\n"
	environ := []string{"BIRD_PULSAR_URL=pulsar://env:1", "BIRD_LOG_LEVEL=info", "BIRD_MODE=safe"}
	loaded, _, err := load(t, file, environ, "-log.level", "debug", "-mode", "fast", "-tail")
	require.NoError(t, err)
	assert.Equal(t, "pulsar://env:1", loaded.Config.Pulsar.URL)
	assert.Equal(t, 5*time.Millisecond, loaded.Config.Pulsar.Linger, "from the file")
	assert.Equal(t, 64*config.MiB, loaded.Config.Pulsar.Limits.Memory, "a default beside keys of the file")
	assert.Equal(t, "debug", loaded.Config.Log.Level)
	assert.Equal(t, mode("fast"), loaded.Config.Mode)
	assert.True(t, loaded.Config.Tail)
	assert.Regexp(t, `^file .*x\.yaml, environment, flags$`, loaded.Source)
}

func TestFile(t *testing.T) {
	port := 7
	for name, test := range map[string]struct {
		text string
		want func(*settings)
	}{
		"empty":           {"# nothing\n", func(*settings) {}},
		"empty section":   {"pulsar:\nmode:\n", func(*settings) {}},
		"list replaced":   {"topics: [c]", func(s *settings) { s.Topics = []string{"c"} }},
		"list emptied":    {"topics: []", func(s *settings) { s.Topics = []string{} }},
		"map replaced":    {"labels: {rack: 1}", func(s *settings) { s.Labels = map[string]string{"rack": "1"} }},
		"optional":        {"pulsar: {optional: {small: 3}}", func(s *settings) { s.Pulsar.Optional = &limits{Small: 3} }},
		"pointer":         {"port: 7", func(s *settings) { s.Port = &port }},
		"any":             {"any: [1, x]", func(s *settings) { s.Any = []any{1, "x"} }},
		"plain bytes":     {"pulsar: {limits: {memory: 1000}}", func(s *settings) { s.Pulsar.Limits.Memory = 1000 }},
		"bytes":           {"pulsar: {limits: {memory: 1.5GiB}}", func(s *settings) { s.Pulsar.Limits.Memory = 1536 * config.MiB }},
		"zero duration":   {"shutdown_timeout: 0", func(*settings) {}},
		"durations":       {"times: [1s, 2m]", func(s *settings) { s.Times = []time.Duration{time.Second, 2 * time.Minute} }},
		"map of sections": {"by_name: {x: {on: true}}", func(s *settings) { s.ByName = map[string]limits{"x": {On: true}} }},
		"element defaults": {"lanes: [{from: a}, {from: b, workers: 1}]", func(s *settings) {
			s.Lanes = []lane{{From: "a", Workers: 4}, {From: "b", Workers: 1}}
		}},
		"anchors": {"pulsar:\n  limits: &l {small: 1, ratio: 0.5}\nby_name:\n  x: *l\n  y: {<<: *l, small: 2}\n  z: {<<: [{small: 4}, *l]}\n", func(s *settings) {
			s.Pulsar.Limits.Small, s.Pulsar.Limits.Ratio = 1, 0.5
			s.ByName = map[string]limits{"x": {Small: 1, Ratio: 0.5}, "y": {Small: 2, Ratio: 0.5}, "z": {Small: 4, Ratio: 0.5}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, _, err := load(t, test.text, nil)
			require.NoError(t, err)
			want := defaults()
			test.want(&want)
			assert.Equal(t, want, loaded.Config)
		})
	}
}

// TestEmptyFileIsRefusedOnceTheProcessRuns: a file that is being written is empty for a moment.
func TestEmptyFileIsRefusedOnceTheProcessRuns(t *testing.T) {
	for text, refused := range map[string]bool{
		"": true, "\n": true, "# nothing\n": true, "---\n": true, "null\n": true, "{}\n": false, "mode: fast\n": false, "mode:\n": false,
	} {
		t.Run(text, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.yaml")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			spec := config.Spec[settings]{Name: "bird", Defaults: defaults, Args: []string{"-config.file", path}}
			_, err := config.Load(spec)
			require.NoError(t, err, "at the start")
			spec.Again = true
			_, err = config.Load(spec)
			if refused {
				assert.Equal(t, []string{"the file is empty: it may not be written in full yet; to go back to the defaults write {}"}, faultsOf(t, err))
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestEnvironmentSetsEveryKindOfKey(t *testing.T) {
	port := 7
	for variable, want := range map[string]func(*settings){
		"PULSAR_URL=pulsar://x: y # z":            func(s *settings) { s.Pulsar.URL = "pulsar://x: y # z" },
		"PULSAR_TOKEN=null":                       func(s *settings) { s.Pulsar.Token = "null" },
		"PULSAR_TOKEN=":                           func(*settings) {},
		"PULSAR_LINGER=3s":                        func(s *settings) { s.Pulsar.Linger = 3 * time.Second },
		"PULSAR_PENDING=5":                        func(s *settings) { s.Pulsar.Pending = 5 },
		"PULSAR_LIMITS_MEMORY=1GiB":               func(s *settings) { s.Pulsar.Limits.Memory = config.GiB },
		"PULSAR_LIMITS_RATIO=0.25":                func(s *settings) { s.Pulsar.Limits.Ratio = 0.25 },
		"PULSAR_LIMITS_ON=true":                   func(s *settings) { s.Pulsar.Limits.On = true },
		"PULSAR_OPTIONAL_SMALL=9":                 func(s *settings) { s.Pulsar.Optional = &limits{Small: 9} },
		"LOG_FORMAT=console":                      func(s *settings) { s.Log.Format = "console" },
		"TOPICS=c":                                func(s *settings) { s.Topics = []string{"c"} },
		"TOPICS=c, 1,true":                        func(s *settings) { s.Topics = []string{"c", "1", "true"} },
		`TOPICS=["c,d", e]`:                       func(s *settings) { s.Topics = []string{"c,d", "e"} },
		"TOPICS=":                                 func(s *settings) { s.Topics = []string{} },
		"TIMES=1s,2s":                             func(s *settings) { s.Times = []time.Duration{time.Second, 2 * time.Second} },
		"LABELS=a=1,b=x=y":                        func(s *settings) { s.Labels = map[string]string{"a": "1", "b": "x=y"} },
		"LABELS={a: '1'}":                         func(s *settings) { s.Labels = map[string]string{"a": "1"} },
		"LABELS=":                                 func(s *settings) { s.Labels = map[string]string{} },
		"LANES=[{from: a, labels: {k: v}}]":       func(s *settings) { s.Lanes = []lane{{From: "a", Workers: 4, Labels: map[string]string{"k": "v"}}} },
		"BY_NAME={x: {small: 1}, y: {ratio: 1} }": func(s *settings) { s.ByName = map[string]limits{"x": {Small: 1}, "y": {Ratio: 1}} },
		"ANY={a: [1]}":                            func(s *settings) { s.Any = map[string]any{"a": []any{1}} },
		"PORT=7":                                  func(s *settings) { s.Port = &port },
		"SHUTDOWN_TIMEOUT=1m30s":                  func(s *settings) { s.Timeout = 90 * time.Second },
	} {
		t.Run(variable, func(t *testing.T) {
			loaded, _, err := load(t, "", []string{"BIRD_" + variable, "OTHER=1"})
			require.NoError(t, err)
			expected := defaults()
			want(&expected)
			assert.Equal(t, expected, loaded.Config)
			assert.Empty(t, loaded.Warnings)
			assert.Equal(t, "environment", loaded.Source)
		})
	}
}

func TestUnknownVariablesWarn(t *testing.T) {
	loaded, _, err := load(t, "", []string{
		"BIRD_PULSAR_ULR=x", "BIRD_NONSENSE_ALTOGETHER=1", "BIRD_FILTER_URL=1", "BIRDS_X=1", "BIRD=1",
		"BIRD_SERVICE_HOST=10.0.0.1", "BIRD_SERVICE_PORT_HTTP=80", "BIRD_PORT=tcp://10.0.0.1:80", "BIRD_PORT_80_TCP_ADDR=10.0.0.1",
	})
	assert.Equal(t, []string{
		"the environment variable BIRD_FILTER_URL sets no key", // BIRD_PULSAR_URL is near only with the prefix
		"the environment variable BIRD_NONSENSE_ALTOGETHER sets no key",
		"the environment variable BIRD_PULSAR_ULR sets no key; did you mean BIRD_PULSAR_URL?",
	}, loaded.Warnings)
	assert.Equal(t, []string{`port: must be a whole number, got "tcp://10.0.0.1:80" ($BIRD_PORT)`}, faultsOf(t, err),
		"a key that Kubernetes may set by accident should not be named so; that it fails is said clearly")
}

func TestExpansion(t *testing.T) {
	environ := []string{"HOST=h", "N=5", "NULL=null", "EMPTY=", "EVIL=x\nmode: fast", "SECRET=123"}
	for name, test := range map[string]struct {
		text  string
		want  func(*settings)
		fault string
	}{
		"inside a text":      {"pulsar: {url: 'pulsar://${HOST}:1'}", func(s *settings) { s.Pulsar.URL = "pulsar://h:1" }, ""},
		"a number":           {"pulsar:\n  pending: ${N}", func(s *settings) { s.Pulsar.Pending = 5 }, ""},
		"a quoted number":    {"any: '${N}'", func(s *settings) { s.Any = "5" }, ""},
		"a plain number":     {"any: ${N}", func(s *settings) { s.Any = 5 }, ""},
		"default":            {"shutdown_timeout: ${NONE:-5s}", func(s *settings) { s.Timeout = 5 * time.Second }, ""},
		"default for empty":  {"shutdown_timeout: ${EMPTY:-5s}", func(s *settings) { s.Timeout = 5 * time.Second }, ""},
		"empty default":      {"topics: ['${NONE:-}']", func(s *settings) { s.Topics = []string{""} }, ""},
		"a text stays text":  {"pulsar:\n  token: ${NULL}", func(s *settings) { s.Pulsar.Token = "null" }, ""},
		"digits in a secret": {"pulsar:\n  token: ${SECRET}", func(s *settings) { s.Pulsar.Token = "123" }, ""},
		"empty is a value":   {"topics:\n- ${EMPTY}", func(s *settings) { s.Topics = []string{""} }, ""},
		"adds no keys":       {"pulsar:\n  token: ${EVIL}", func(s *settings) { s.Pulsar.Token = "x\nmode: fast" }, ""},
		"escaped":            {"topics: ['$${HOST} $HOST']", func(s *settings) { s.Topics = []string{"${HOST} $HOST"} }, ""},
		"not set": {
			"lanes: [{from: a}, {from: '${NONE}'}]", nil,
			"lanes[1].from: needs the environment variable NONE, which is not set; ${NONE:-default} gives a default (line 1)",
		},
		"malformed": {
			"\ntopics: ['${HOST-x}']", nil,
			`topics[0]: must refer to the environment as ${NAME} or ${NAME:-default} (and write $${ for a plain ${), got "${HOST-x}" (line 2)`,
		},
		"unclosed": {
			"topics: ['${HOST']", nil,
			`topics[0]: must refer to the environment as ${NAME} or ${NAME:-default} (and write $${ for a plain ${), got "${HOST" (line 1)`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, _, err := load(t, test.text, environ)
			if test.fault != "" {
				assert.Equal(t, []string{test.fault}, faultsOf(t, err))
				return
			}
			require.NoError(t, err)
			want := defaults()
			test.want(&want)
			assert.Equal(t, want, loaded.Config)
		})
	}
}

func TestFaults(t *testing.T) {
	for name, test := range map[string]struct {
		text    string
		environ []string
		want    []string
	}{
		"unknown keys, all at once": {
			"pulsr: {}\npulsar:\n  ulr: x\n  Linger: 1s\nurl: x\nlanes: [{from: a, wrkers: 1}]\nzzz: 1\n", nil,
			[]string{
				"pulsr: is not a known key; did you mean pulsar? (line 1)",
				"pulsar.ulr: is not a known key; did you mean pulsar.url? (line 3)",
				"pulsar.Linger: is not a known key; did you mean pulsar.linger? (line 4)",
				"url: is not a known key; did you mean pulsar.url? (line 5)",
				"lanes[0].wrkers: is not a known key; did you mean lanes[0].workers? (line 6)",
				"zzz: is not a known key; known here: log, pulsar, topics, lanes, by_name, labels, shutdown_timeout, mode, any, port, times (line 7)",
			},
		},
		"types": {
			"pulsar:\n  pending: many\n  linger: 5\n  limits: {small: 300, ratio: x, on: 1, memory: 1QB}\ntopics: a\nlabels: [a]\nmode: {a: 1}\nlanes: [a]\n", nil,
			[]string{
				`pulsar.pending: must be a whole number, got "many" (line 2)`,
				`pulsar.linger: must be a duration such as 500ms, 10s or 1m30s, got "5"; did you mean 5s? (line 3)`,
				`pulsar.limits.small: must be a whole number >= 0 that fits in 8 bits, got "300" (line 4)`,
				`pulsar.limits.ratio: must be a number, got "x" (line 4)`,
				`pulsar.limits.on: must be true or false, got "1" (line 4)`,
				`pulsar.limits.memory: must be a size such as 512KiB, 64MiB, 10MB or a number of bytes, got "1QB" (line 4)`,
				`topics: must be a list, got "a" (line 5)`,
				`labels: must be a mapping of keys, got a list (line 6)`,
				`mode: must be a single text, got a mapping (line 7)`,
				`lanes[0]: must be a mapping of keys, got "a" (line 8)`,
				`lanes[0].from: must be set`,
			},
		},
		"validation of every level, with unknown keys": {
			"pulsar:\n  url: http://u:p@x\n  pending: -1\n  optional: {ratio: 2}\nlanes: [{from: a}, {from: ''}]\nby_name: {x: {ratio: 3}}\nmode: slow\nlog: {level: loud}\nx: 1\n", nil,
			[]string{
				"x: is not a known key; known here: log, pulsar, topics, lanes, by_name, labels, shutdown_timeout, mode, any, port, times (line 9)",
				`log.level: must be one of debug, info, got "loud" (line 8)`,
				`pulsar.url: must start with pulsar://, got "http://u:<redacted>@x" (line 2)`,
				`pulsar.pending: must be >= 0 (line 3)`,
				`pulsar.linger: is useless: without pending`,
				`pulsar.optional.ratio: must be <= 1, got 2 (line 4)`,
				`lanes[1].from: must be set (line 5)`,
				`by_name.x.ratio: must be <= 1, got 3 (line 6)`,
				`mode: must be fast or safe (line 7)`,
			},
		},
		"from the environment": {
			"pulsar: {pending: -3}\n",
			[]string{"BIRD_PULSAR_URL=x", "BIRD_PULSAR_LINGER=", "BIRD_TOPICS={a: 1}", "BIRD_LABELS=a", "BIRD_LANES=[{frm: a}]", "BIRD_BY_NAME=[", "BIRD_TIMES=1s,x"},
			[]string{
				`pulsar.linger: must be a duration such as 500ms, 10s or 1m30s, got "" ($BIRD_PULSAR_LINGER)`,
				`topics: must be a list, got a mapping ($BIRD_TOPICS)`,
				`lanes[0].frm: is not a known key; did you mean lanes[0].from? ($BIRD_LANES)`,
				`by_name: is not YAML: line 1: did not find expected node content ($BIRD_BY_NAME)`,
				`labels: must be a mapping of keys, got "a" ($BIRD_LABELS)`,
				`times[1]: must be a duration such as 500ms, 10s or 1m30s, got "x" ($BIRD_TIMES)`,
				`pulsar.url: must start with pulsar://, got "x" ($BIRD_PULSAR_URL)`,
				`pulsar.pending: must be >= 0 (line 1)`,
				`lanes[0].from: must be set`,
			},
		},
		"given twice":   {"mode: fast\nmode: safe\n", nil, []string{"mode: is given twice: first in line 1 (line 2)"}},
		"not a mapping": {"- a\n", nil, []string{"must be a mapping of keys, got a list (line 1)"}},
		"two documents": {"mode: fast\n---\nmode: safe\n", nil, []string{"must be one YAML document, got 2 (line 2)"}},
		"syntax":        {"mode: [\n", nil, []string{"is not YAML: line 1: did not find expected node content"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := load(t, test.text, test.environ)
			assert.Equal(t, test.want, faultsOf(t, err))
		})
	}
}

// TestAliasesOfAliases: ten lines stand for 10^12 keys.
func TestAliasesOfAliases(t *testing.T) {
	text := "by_name:\n  a0: &a0 {small: 1}\n"
	for i := range 12 {
		text += fmt.Sprintf("  a%d: &a%[1]d {<<: [%s]}\n", i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	_, _, err := load(t, text, nil)
	assert.Equal(t, 1, strings.Count(strings.Join(faultsOf(t, err), "\n"), "it has too many aliases"))
}

// TestAnchorsInsideThemselves: they are faults; following them would not end.
func TestAnchorsInsideThemselves(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"merge":           {"pulsar: &p\n  <<: *p\n", "pulsar: the alias *p is inside its own anchor &p (line 2)"},
		"merge of a list": {"pulsar:\n  <<: &l [*l]\n", "pulsar: the alias *l is inside its own anchor &l (line 2)"},
		"two merges":      {"by_name:\n  a: &a {<<: &b {<<: *a}}\n", "by_name.a: the alias *a is inside its own anchor &a (line 2)"},
		"a list":          {"lanes: &l [*l]\n", "lanes[0]: must be a mapping of keys, got a list (line 1)"},
		"any":             {"any: &a [*a]\n", "any: must be a valid value, got a list (line 1)"},
		"merge in any":    {"any: &a {<<: *a}\n", "any: must be a valid value, got a mapping (line 1)"},
		"the document":    {"&d\n<<: *d\n", "the alias *d is inside its own anchor &d (line 2)"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := load(t, test.text, nil)
			assert.Contains(t, faultsOf(t, err), test.want)
		})
	}
	_, _, err := load(t, "", []string{"BIRD_LANES=[&l {<<: *l}]"})
	assert.Contains(t, faultsOf(t, err), "lanes[0]: the alias *l is inside its own anchor &l ($BIRD_LANES)")
}

// TestZerosInFrontOfNumbers: 0100 is 64 in YAML 1.1 and 100 in YAML 1.2.
func TestZerosInFrontOfNumbers(t *testing.T) {
	const fault = `: must be a number without zeros in front (0100 is 64 to some and 100 to others), got "`
	for text, want := range map[string]string{
		"port: 0100":                                 "port" + fault + `0100" (line 1)`,
		"port: -08":                                  "port" + fault + `-08" (line 1)`,
		"pulsar: {limits: {ratio: 00}}":              "pulsar.limits.ratio" + fault + `00" (line 1)`,
		"pulsar: {limits: {small: 0_7}}":             "pulsar.limits.small" + fault + `0_7" (line 1)`,
		"pulsar: {limits: {memory: 010MiB}}":         "pulsar.limits.memory" + fault + `010MiB" (line 1)`,
		"any: 0100":                                  "any" + fault + `0100" (line 1)`,
		"any: [1, {x: 0100}]":                        "any" + fault + `0100" (line 1)`,
		"pulsar: {pending: 0100, limits: {on: yes}}": "pulsar.pending" + fault + `0100" (line 1)`,
	} {
		t.Run(text, func(t *testing.T) {
			_, _, err := load(t, text, nil)
			assert.Contains(t, faultsOf(t, err), want)
		})
	}
	_, _, err := load(t, "", []string{"BIRD_PORT=0100"})
	assert.Equal(t, []string{"port" + fault + `0100" ($BIRD_PORT)`}, faultsOf(t, err))

	loaded, _, err := load(t, "port: 0x40\npulsar: {pending: 0, token: 0100, limits: {ratio: 0.5, memory: 0}}\nlabels: {a: 0100}\nany: '0100'\nshutdown_timeout: 01s\n", nil)
	require.NoError(t, err, "nothing here is ambiguous")
	assert.Equal(t, 64, *loaded.Config.Port)
	assert.Equal(t, "0100", loaded.Config.Labels["a"])
	assert.Equal(t, "0100", loaded.Config.Any)
	assert.Equal(t, "0100", loaded.Config.Pulsar.Token.Reveal())
}

func TestErrorIsForPeople(t *testing.T) {
	_, _, err := load(t, "", []string{"BIRD_PULSAR_URL=x", "BIRD_PORT=y"}, "-log.level", "loud")
	assert.EqualError(t, err, `bird: 3 faults in the configuration (environment, flags)
  port: must be a whole number, got "y" ($BIRD_PORT)
  log.level: must be one of debug, info, got "loud" (-log.level)
  pulsar.url: must start with pulsar://, got "x" ($BIRD_PULSAR_URL)`)

	_, _, err = load(t, "", nil, "-config.file", filepath.Join(t.TempDir(), "none.yaml"))
	assert.ErrorContains(t, err, "bird: 1 fault in the configuration (file ")
	assert.ErrorContains(t, err, "no such file")
}

func TestCommandLine(t *testing.T) {
	for name, test := range map[string]struct {
		args   []string
		action config.Action
		err    error
		usage  string
	}{
		"check":     {[]string{"-config.check"}, config.Check, nil, ""},
		"connect":   {[]string{"-config.check", "-config.connect"}, config.Connect, nil, ""},
		"print":     {[]string{"-config.print", "-config.check"}, config.PrintKeys, nil, ""},
		"version":   {[]string{"-version"}, config.Version, nil, ""},
		"ready":     {[]string{"-ready"}, config.Ready, nil, ""},
		"two minus": {[]string{"--config.check"}, config.Check, nil, ""},
		"unknown":   {[]string{"-no"}, config.Run, config.ErrUsage, "flag provided but not defined: -no"},
		"argument":  {[]string{"-tail", "yes"}, config.Run, config.ErrUsage, `unexpected argument "yes"`},
		"help":      {[]string{"-h"}, config.Run, flag.ErrHelp, "BIRD_LOG_LEVEL"},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, usage, err := load(t, "", nil, test.args...)
			require.ErrorIs(t, err, test.err)
			assert.Equal(t, test.action, loaded.Action)
			assert.Contains(t, usage, test.usage)
		})
	}
}

func TestVersionNeedsNoValidConfiguration(t *testing.T) {
	loaded, _, err := load(t, "nonsense: 1", []string{"BIRD_MODE=no"}, "-version")
	require.NoError(t, err)
	assert.Equal(t, config.Version, loaded.Action)
}

func TestSharedEnvironmentNameIsRefused(t *testing.T) {
	type clash struct {
		A struct {
			BC string `yaml:"b_c"`
		} `yaml:"a"`
		AB struct {
			C string `yaml:"c"`
		} `yaml:"a_b"`
	}
	_, err := config.Load(config.Spec[clash]{Name: "bird", Defaults: func() clash { return clash{} }})
	assert.ErrorContains(t, err, "a_b.c: shares the environment variable BIRD_A_B_C with a.b_c")
}

func TestYAMLRedacts(t *testing.T) {
	cfg := defaults()
	cfg.Pulsar.Token = "hunter2"
	cfg.Pulsar.URL = "pulsar://user:hunter2@host:6650"
	cfg.Labels = map[string]string{"note": "see amqp://u:hunter2@h/v and more"}
	cfg.Pulsar.Optional = &limits{Memory: 1001}
	text, err := config.YAML(cfg)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "hunter2")
	for _, want := range []string{
		"token: <redacted>", "pulsar://user:<redacted>@host:6650", "amqp://u:<redacted>@h/v and more", "linger: 1ms", "memory: 64MiB", "level: info",
	} {
		assert.Contains(t, string(text), want)
	}

	cfg.Pulsar.URL, cfg.Pulsar.Token, cfg.Labels = "pulsar://h", "", nil
	text, err = config.YAML(cfg)
	require.NoError(t, err)
	loaded, _, err := load(t, string(text), nil)
	require.NoError(t, err)
	cfg.Labels = defaults().Labels // "{}" would empty it; a nil map prints as "{}" too
	loaded.Config.Labels = cfg.Labels
	assert.Equal(t, cfg.Pulsar, loaded.Config.Pulsar, "what is printed reads back as the same")
}

// TestURLsAreShownWithoutSecrets: wherever a URL stands, in the configuration and in faults.
func TestURLsAreShownWithoutSecrets(t *testing.T) {
	for url, want := range map[string]string{
		"amqp://user:hunter2@host:1/v":                  "amqp://user:<redacted>@host:1/v",
		"amqp://me@corp.example:hunter2@host:1/v":       "amqp://me@corp.example:<redacted>@host:1/v",
		"amqp://me@a@b:hunter2@c@host/v":                "amqp://me@a@b:<redacted>@host/v",
		"redis://:hunter2@host":                         "redis://:<redacted>@host",
		"amqp://user:hun/ter2@host/v":                   "amqp://user:<redacted>@host/v",
		"amqp://user:hun?ter#2@host/v":                  "amqp://user:<redacted>@host/v",
		"amqp://user:hun ter2@host/v":                   "amqp://user:<redacted>@host/v",
		"pulsar://u:hunter2@a:1,v:hunter2@b:2":          "pulsar://u:<redacted>@b:2",
		"amqp://u:hunter2@a,amqp://x@y:hunter2@b":       "amqp://u:<redacted>@a,amqp://x@y:<redacted>@b",
		"https://host/p?token=hunter2&sig=hunter2":      "https://host/p?token=<redacted>&sig=<redacted>",
		"https://me@x:hunter2@host/p?a=hunter2#hunter2": "https://me@x:<redacted>@host/p?a=<redacted>&<redacted>",
		"https://host?hunter2":                          "https://host?<redacted>",
		"http://host:80/a@b":                            "http://host:80/a@b",
		"pulsar://a:6650,b:6650":                        "pulsar://a:6650,b:6650",
		"http://[::1]:80/x@y":                           "http://[::1]:80/x@y",
		"http://user@host/p":                            "http://user@host/p",
		"see http://host:port/ or ask me@example.org":   "see http://host:port/ or ask me@example.org",
	} {
		t.Run(url, func(t *testing.T) {
			cfg := defaults()
			cfg.Pulsar.URL = url
			text, err := config.YAML(cfg)
			require.NoError(t, err)
			assert.Contains(t, string(text), want)
			fault := (&config.FieldError{Problem: fmt.Sprintf("must be better, got %q", url)}).Error()
			assert.Contains(t, fault, want)
			assert.NotContains(t, string(text)+fault, "hunter2")
			for _, part := range []string{"ter2", "ter#2"} {
				assert.NotContains(t, string(text)+fault, part)
			}
		})
	}
}

// TestFaultsOfSecretsDoNotShowThem: whatever is wrong with how a secret is written.
// TestFaultsHidePasswordsWithoutAScheme: some keys are host:port, and people paste what they have.
func TestFaultsHidePasswordsWithoutAScheme(t *testing.T) {
	for given, want := range map[string]string{
		"user:hunter2@host:9092":     `brokers: must be host:port, got "user:<redacted>@host:9092"`,
		":hunt@er2@host":             `brokers: must be host:port, got ":<redacted>@host"`,
		"amqp:user:hunter2@host":     `brokers: must be host:port, got "amqp:<redacted>@host"`,
		"amqp://user:hunter2@host/v": `brokers: must be host:port, got "amqp://user:<redacted>@host/v"`,
		"host:9092":                  `brokers: must be host:port, got "host:9092"`,
		"amqp://host/v@w":            `brokers: must be host:port, got "amqp://host/v@w"`,
	} {
		assert.EqualError(t, config.Fault("brokers", "must be host:port, got %q", given), want)
	}
}

func TestFaultsOfSecretsDoNotShowThem(t *testing.T) {
	type keys struct {
		Common  `yaml:",inline"`
		Token   secret.String            `yaml:"token"`
		Tokens  []secret.String          `yaml:"tokens"`
		ByName  map[string]secret.String `yaml:"by_name"`
		Section struct {
			Password secret.String `yaml:"password"`
		} `yaml:"section"`
		Lanes []struct {
			Password *secret.String `yaml:"password"`
		} `yaml:"lanes"`
	}
	for _, test := range []struct{ text, variable, want string }{
		{"tokens: hunter2", "", "tokens: must be a list, got a single value, which is not shown (line 1)"},
		{"by_name: hunter2", "", "by_name: must be a mapping of keys, got a single value, which is not shown (line 1)"},
		{"section: hunter2", "", "section: must be a mapping of keys, got a single value, which is not shown (line 1)"},
		{"lanes: [hunter2]", "", "lanes[0]: must be a mapping of keys, got a single value, which is not shown (line 1)"},
		{"lanes: [{hunter2: kitchen}]", "", "lanes[0]: has an unknown key, which is not shown; known here: password (line 1)"},
		{"lanes: [{pasword: x}]", "", "lanes[0].pasword: is not a known key; did you mean lanes[0].password? (line 1)"},
		{"hunter2", "", "must be a mapping of keys, got a single value, which is not shown (line 1)"},
		{"section: {password:hunter2}", "", "section.password:...: is not a known key; a space must follow the colon (line 1)"},
		{"token: 'x${hunter2'", "", "token: must refer to the environment as ${NAME} or ${NAME:-default} (and write $${ for a plain ${) (line 1)"},
		{"tokn: 'x${hunter2'", "", "tokn: is not a known key; did you mean token? (line 1)"},
		{"tokens: ['x${hunter2']", "", "tokens[0]: must refer to the environment as ${NAME} or ${NAME:-default} (and write $${ for a plain ${) (line 1)"},
		{"token: *hunter2", "", "is not YAML: a value that begins with * refers to an anchor, which is not there"},
		{"token: {hunter2: x}", "", "token: must be a single text, got a mapping (line 1)"},
		{"", "TOKENS=*hunter2", "tokens: is not YAML: what is wrong with it is not shown ($BIRD_TOKENS)"},
		{"", "BY_NAME=hunter2", "by_name: must be a mapping of keys, got a single value, which is not shown ($BIRD_BY_NAME)"},
		{"", "TOKENS={hunter2: x}", "tokens: must be a list, got a mapping ($BIRD_TOKENS)"},
	} {
		t.Run(test.want, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.yaml")
			require.NoError(t, os.WriteFile(path, []byte(test.text), 0o600))
			_, err := config.Load(config.Spec[keys]{
				Name: "bird", Defaults: func() (k keys) { k.Log.Level = "info"; return k }, Args: []string{"-config.file", path}, Environ: []string{"BIRD_" + test.variable},
			})
			assert.Contains(t, faultsOf(t, err), test.want)
			assert.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestTwoListenersHaveTwoPorts(t *testing.T) {
	for _, same := range [][2]string{{":1", ":1"}, {"127.0.0.1:1", "127.0.0.1:1"}, {"127.0.0.1:1", ":1"}, {"0.0.0.0:1", "127.0.0.1:1"}, {"[::]:1", ":1"}} {
		require.EqualError(t, config.CheckApart("a", same[0], "b", same[1]), fmt.Sprintf(`a: must be another address than b, got %q for both`, same[0]))
	}
	for _, apart := range [][2]string{{":1", ":2"}, {":0", ":0"}, {"127.0.0.1:1", "127.0.0.2:1"}, {"x", "x"}} {
		require.NoError(t, config.CheckApart("a", apart[0], "b", apart[1]))
	}
}

func TestChecksOfNumbersNameTheBounds(t *testing.T) {
	require.NoError(t, config.CheckRange("x", 1, 1, 64))
	require.NoError(t, config.CheckRange("x", 64, 1, 64))
	require.EqualError(t, config.CheckRange("x", 0, 1, 64), "x: must be from 1 to 64, got 0")
	require.EqualError(t, config.CheckRange("x", 65, 1, 64), "x: must be from 1 to 64, got 65")
	require.EqualError(t, config.CheckRange("x", 1, config.KiB, 64*config.MiB), "x: must be from 1KiB to 64MiB, got 1")
	require.EqualError(t, config.CheckRange("x", 6*time.Second, 100*time.Millisecond, 5*time.Second), "x: must be from 100ms to 5s, got 6s")
	require.NoError(t, config.CheckAtLeast("x", config.MiB, config.MiB))
	require.EqualError(t, config.CheckAtLeast("x", config.MiB-1, config.MiB), "x: must be at least 1MiB, got 1048575")
	require.EqualError(t, config.CheckAtLeast("x", .5, 1), "x: must be at least 1, got 0.5")
}

func TestCheckListen(t *testing.T) {
	for _, good := range []string{":0", "127.0.0.1:9090", "localhost:80", "[::1]:65535"} {
		require.NoError(t, config.CheckListen("x", good))
	}
	for _, bad := range []string{"", "9090", "host", "host:", "host:http", "host:65536", "::1:80", "host:-1"} {
		require.EqualError(t, config.CheckListen("x", bad),
			`x: must be host:port to listen on, such as 127.0.0.1:9090 or :9090, got "`+bad+`"`)
	}
}
