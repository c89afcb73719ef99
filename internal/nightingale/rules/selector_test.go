package rules

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

func TestSelectors(t *testing.T) {
	labels := []batch.Label{{Name: "__name__", Value: "up"}, {Name: "job", Value: `a"b'c`}}
	for text, want := range map[string]bool{
		"up": true, "down": false, `up{}`: true, `{job=~"a.*"}`: true, ` up { job != 'a"b\'c' , } `: false, `{"up"}`: true, `{"job"=~".+","up"}`: true,
		"{job=`a\"b'c`}": true, `{zone=""}`: true, `{zone!~".+",job!="x"}`: true, `up{job="x"}`: false, `job:up`: false, `{__name__="up"}`: true,
	} {
		s, err := ParseSelector(text)
		if assert.NoError(t, err, text) {
			assert.Equal(t, want, s.matches(labels), text)
		}
	}
	for _, bad := range []string{"", "{", "up{", "up}", "{job}", "{job=}", `{job="a"`, `{job="a" zone="b"}`, "1up", `{job=~"("}`, "up down", "{'a}", `{job="a}`, `{'a\`} {
		_, err := ParseSelector(bad)
		assert.Error(t, err, bad)
	}
}
