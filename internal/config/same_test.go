package config_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/secret"
)

func TestSame(t *testing.T) {
	type inner struct {
		Password secret.String `yaml:"password"`
	}
	type outer struct {
		List    []inner          `yaml:"list"`
		Named   map[string]inner `yaml:"named"`
		Maybe   *inner           `yaml:"maybe"`
		Network netip.Prefix     `yaml:"network"`
		Any     map[string]any   `yaml:"any"`
		Compute func()           `yaml:"-"`
	}
	whole := func(change func(*outer)) outer {
		made := outer{
			List: []inner{{"a"}}, Named: map[string]inner{"x": {"b"}}, Maybe: &inner{"c"}, Network: netip.MustParsePrefix("10.0.0.0/8"),
			Any: map[string]any{"n": 1, "l": []any{"m"}}, Compute: func() {},
		}
		change(&made)
		return made
	}
	assert.True(t, config.Same(whole(func(*outer) {}), whole(func(*outer) {})))
	assert.True(t, config.Same(outer{}, outer{List: []inner{}, Named: map[string]inner{}}))
	assert.True(t, config.Same([]inner(nil), []inner{}))
	assert.False(t, config.Same([]inner(nil), []inner{{}}))
	for name, change := range map[string]func(*outer){
		"a secret":        func(o *outer) { o.List[0].Password = "z" },
		"a longer list":   func(o *outer) { o.List = append(o.List, inner{}) },
		"another name":    func(o *outer) { o.Named = map[string]inner{"y": {"b"}} },
		"more names":      func(o *outer) { o.Named["y"] = inner{} },
		"a named secret":  func(o *outer) { o.Named["x"] = inner{"z"} },
		"none":            func(o *outer) { o.Maybe = nil },
		"another network": func(o *outer) { o.Network = netip.MustParsePrefix("10.0.0.0/9") },
		"any":             func(o *outer) { o.Any["l"] = []any{"z"} },
	} {
		assert.False(t, config.Same(whole(func(*outer) {}), whole(change)), name)
		assert.False(t, config.Same(whole(change), whole(func(*outer) {})), name)
	}
}

// TestChanged: keys of inlined structs are of the first level, fields without a key do not count.
func TestChanged(t *testing.T) {
	was, is := defaults(), defaults()
	is.Log.Level, is.Topics, is.Tail, is.ByName = "debug", []string{"c"}, true, map[string]limits{}
	assert.Equal(t, []string{"log", "topics"}, config.Changed(was, is))
	assert.Empty(t, config.Changed(was, was))
}
