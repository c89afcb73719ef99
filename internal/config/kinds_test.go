package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/secret"
)

type square struct {
	Side int           `yaml:"side"`
	Key  secret.String `yaml:"key"`
}

func (s square) Validate() error { return config.CheckPositive("side", s.Side) }

type circle struct {
	Radius int `yaml:"radius"`
}

// shapes is a map whose keys name the types of its elements.
type shapes map[string]any

func (shapes) Kinds() map[string]any {
	return map[string]any{"square": &square{Side: 1}, "circle": &circle{Radius: 2}}
}

type drawing struct {
	Shape shapes   `yaml:"shape"`
	More  []shapes `yaml:"more"`
	Pages []page   `yaml:"pages"`
}

type page struct {
	Shape  shapes `yaml:"shape"`
	Border struct {
		Shape *shapes `yaml:"shape"`
	} `yaml:"border"`
}

func loadDrawing(t *testing.T, text string) (drawing, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "drawing.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	loaded, err := config.Load(config.Spec[drawing]{
		Name: "drawing", Defaults: func() drawing { return drawing{} }, Args: []string{"-config.file", file}, Usage: new(bytes.Buffer),
	})
	return loaded.Config, err
}

// TestKeysThatNameTypes: each element has the type, the defaults and the faults of its key.
func TestKeysThatNameTypes(t *testing.T) {
	got, err := loadDrawing(t, `
base: &base {square: {side: 3, key: k}}
`)
	require.ErrorContains(t, err, "base: is not a known key")
	assert.Nil(t, got.Shape)

	got, err = loadDrawing(t, `
shape: &base {square: {side: 3, key: k}, circle: }
more: [{circle: {}}, {<<: *base, square: {key: l}}]
`)
	require.NoError(t, err)
	assert.Equal(t, shapes{"square": &square{Side: 3, Key: "k"}}, got.Shape, "a key without a value adds nothing")
	assert.Equal(t, []shapes{{"circle": &circle{Radius: 2}}, {"square": &square{Side: 3, Key: "l"}}}, got.More, "merged below the key")

	_, err = loadDrawing(t, `
shape: {sqare: {side: 3}}
more: [{square: {side: 0}}, {circle: {side: 3}}, secret]
`)
	require.Error(t, err)
	for _, want := range []string{
		"shape.sqare: is not a known key; did you mean shape.square?", "more[0].square.side: must be > 0, got 0", "more[1].circle.side: is not a known key",
		"more[2]: must be a mapping of keys, got a single value, which is not shown",
	} {
		assert.ErrorContains(t, err, want)
	}
}

// TestKindsAreMerged as sections are: "<<" of what holds them gives the keys that are not overridden.
func TestKindsAreMerged(t *testing.T) {
	got, err := loadDrawing(t, `
pages:
- &base {shape: {square: {side: 3, key: k}}}
- {<<: *base, shape: {square: {side: 4}}}
- {<<: *base, shape: {circle: {}}}
`)
	require.NoError(t, err)
	want := []shapes{
		{"square": &square{Side: 3, Key: "k"}}, {"square": &square{Side: 4, Key: "k"}}, {"square": &square{Side: 3, Key: "k"}, "circle": &circle{Radius: 2}},
	}
	for i, page := range got.Pages {
		assert.Equal(t, want[i], page.Shape)
	}
}

// TestFaultsBesideKinds name the key, and say nothing of a value where kinds may hold secrets.
func TestFaultsBesideKinds(t *testing.T) {
	_, err := loadDrawing(t, `
pages: [{maximum: 3}, {border: hunter2}, {border: {shape: "${HUNTER"}}]
`)
	require.Error(t, err)
	for _, want := range []string{
		"pages[0].maximum: is not a known key; known here: shape, border", "pages[1].border: must be a mapping of keys, got a single value, which is not shown",
		"pages[2].border.shape: must refer to the environment",
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.NotContains(t, err.Error(), "hunter2")
	assert.NotContains(t, err.Error(), "HUNTER")
}

// TestSameComparesKinds: by type and by keys.
func TestSameComparesKinds(t *testing.T) {
	one := func() drawing { return drawing{Shape: shapes{"square": &square{Side: 3}}} }
	assert.True(t, config.Same(one(), one()))
	for _, other := range []shapes{nil, {"square": &square{Side: 4}}, {"square": &circle{}}, {"circle": &circle{}}} {
		assert.False(t, config.Same(one(), drawing{Shape: other}))
	}
}

// TestSecretsOfKindsAreRedacted in what is printed, and listed keys have those of all kinds.
func TestSecretsOfKindsAreRedacted(t *testing.T) {
	text, err := config.YAML(drawing{Shape: shapes{"square": &square{Side: 3, Key: "hunter2"}}})
	require.NoError(t, err)
	assert.Contains(t, string(text), "side: 3")
	assert.NotContains(t, string(text), "hunter2")
	listed := config.Keys("drawing", drawing{})
	assert.Contains(t, listed, "side: 1")
	assert.Contains(t, listed, "radius: 2")
}
