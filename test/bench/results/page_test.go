package results

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// example are results with two sides, of which one has a name that tries to end the script.
func example() *Results {
	turn := func() *load.Result {
		return &load.Result{
			Figures: map[string]float64{"publish_msg_s": 12345.6, "publish_p99_ms": 4.25, "lost": 0, "duplicated": 2, "failed": 0},
			Samples: []load.Sample{
				{At: 1.01, Phase: "build", Values: map[string]float64{"publish_msg_s": 12000, "broker_heap_mib": 300}},
				{At: 2.02, Phase: "drain", Values: map[string]float64{"publish_msg_s": 12500, "queue_add_ms": 1}},
			},
		}
	}
	return &Results{
		Scenario: "example", Question: `<img src=x onerror="alert(1)">`, Command: "go run ./test/bench", Machine: "2 cores",
		Began: time.Unix(0, 0),
		Parts: []*Part{
			{Name: `</script><script>alert("part")</script>`, Workload: workload.Default(), Sides: []*Side{
				{Name: "library", Turns: []*load.Result{turn(), turn()}},
				{Name: `</script><script>alert("side")</script>`, Turns: []*load.Result{turn()}},
			}},
			{Name: "second-part", Workload: workload.Default(), Sides: []*Side{{Name: "alone"}}},
		},
		Targets: []measure.Target{{Name: "rate", Value: 1, Target: ">= 2"}, {Name: "latency", Value: 1, Target: "<= 2", OK: true}},
	}
}

func TestPage(t *testing.T) {
	var b strings.Builder
	if err := example().Page(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{
		"second-part", "publish, msg/s", "12,346 (12,346–12,346)", "not counted: no admin URL",
		"1 of 2 met", `class="bad">not met`, `class="good">met`,
		`"broker_heap_mib"`, `"queue_add_ms"`, `"phase":"drain"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, hostile := range []string{"<img", `<script>alert`, "onerror=\""} {
		if strings.Contains(page, hostile) {
			t.Errorf("the page has %q, which is not escaped", hostile)
		}
	}
	loads := regexp.MustCompile(`(?i)<[a-z][^<>]*\s(src|href)\s*=|@import|url\(|fetch\(|XMLHttpRequest|import\(`)
	for _, found := range loads.FindAllString(page, -1) {
		t.Errorf("the page loads something: %s", found)
	}
	if len(page) > 100_000 {
		t.Errorf("the page has %d bytes without data", len(page))
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.012345: "0.01235", 999.94: "999.9", 1000: "1,000", -1234567.8: "-1,234,568"} {
		if got := number(v); got != want {
			t.Errorf("%g: %s, not %s", v, got, want)
		}
	}
}
