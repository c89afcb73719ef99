package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/pkg/secret"
)

const plain = "hunter2"

type holder struct {
	Password secret.String `json:"password" yaml:"password"`
}

func TestStringNeverPrintsItsValue(t *testing.T) {
	h := holder{Password: plain}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%10s"} {
		for _, value := range []any{h.Password, h, &h, []secret.String{plain}, map[string]secret.String{"k": plain}} {
			out := fmt.Sprintf(verb, value)
			assert.NotContains(t, out, plain, verb)
			assert.NotContains(t, out, fmt.Sprintf("%x", plain), verb)
		}
	}

	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "secret", h.Password, "holder", h)
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&logged), zap.InfoLevel)
	zap.New(core).Info("x", zap.Any("secret", h.Password), zap.Any("holder", h), zap.Stringer("text", h.Password))
	assert.NotContains(t, logged.String(), plain)
	assert.Equal(t, 5, strings.Count(logged.String(), "redacted"))
}

func TestStringInEncoders(t *testing.T) {
	for _, test := range []struct{ value, yaml, json string }{
		{plain, "password: <redacted>\n", `{"password":"\u003credacted\u003e"}`},
		{"", "password: \"\"\n", `{"password":""}`},
	} {
		text, err := yaml.Marshal(holder{Password: secret.String(test.value)})
		require.NoError(t, err)
		assert.Equal(t, test.yaml, string(text))
		text, err = json.Marshal(holder{Password: secret.String(test.value)})
		require.NoError(t, err)
		assert.Equal(t, test.json, string(text))
		text, err = secret.String(test.value).MarshalText()
		require.NoError(t, err)
		assert.NotContains(t, string(text), plain)
	}

	var h holder
	require.NoError(t, yaml.Unmarshal([]byte("password: "+plain), &h))
	assert.Equal(t, plain, h.Password.Reveal())
	require.NoError(t, json.Unmarshal([]byte(`{"password":"other"}`), &h))
	assert.Equal(t, "other", h.Password.Reveal())
}

func TestEqual(t *testing.T) {
	assert.True(t, secret.String("a").Equal("a"))
	assert.True(t, secret.String("").Equal(""))
	assert.False(t, secret.String("a").Equal("b"))
	assert.False(t, secret.String("a").Equal("aa"))
}

func TestResolve(t *testing.T) {
	write := func(content string) string {
		path := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	for name, test := range map[string]struct {
		value secret.String
		file  string
		want  string
		fault string
	}{
		"neither":     {},
		"value":       {value: plain, want: plain},
		"file":        {file: write("  hunter2\r\n"), want: plain},
		"largest":     {file: write(strings.Repeat("a", 64<<10)), want: strings.Repeat("a", 64<<10)},
		"both":        {value: plain, file: write("x"), fault: "not both"},
		"empty file":  {file: write(" \n"), fault: "is empty"},
		"too large":   {file: write(strings.Repeat("a", 64<<10+1)), fault: "is larger than 65536 bytes"},
		"binary":      {file: write("\xff\xfe"), fault: "is not UTF-8"},
		"no file":     {file: filepath.Join(t.TempDir(), "none"), fault: "no such file"},
		"a directory": {file: t.TempDir(), fault: "is a directory: name the file in it"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := secret.Resolve(test.value, test.file)
			if test.fault != "" {
				require.ErrorContains(t, err, test.fault)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want, got.Reveal())
		})
	}
}
