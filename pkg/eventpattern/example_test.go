package eventpattern_test

import (
	"fmt"
	"log"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

// An index finds the rules of an event. Each goroutine has a Scratch of its own.
func Example() {
	rules := map[string]string{
		"orders": `{"type": ["order.created", "order.changed"]}`,
		"large":  `{"data": {"total": [{"numeric": [">=", 100]}], "state": [{"anything-but": "draft"}]}}`,
		"drinks": `{"data": {"items": {"sku": [{"prefix": "wine-"}], "count": [{"numeric": [">", 5]}]}}}`,
	}
	index := eventpattern.NewIndex[string]()
	index.Update(func(c *eventpattern.Change[string]) {
		for id, text := range rules {
			pattern, err := eventpattern.Parse([]byte(text))
			if err != nil {
				log.Fatal(err)
			}
			c.Set(id, pattern)
		}
	})

	var scratch eventpattern.Scratch
	ids, err := index.Match(&scratch, nil, []byte(`{"type": "order.created", "data": {"total": 250.0, "state": "paid",
		"items": [{"sku": "wine-17", "count": 1}, {"sku": "bread-2", "count": 8}]}}`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(ids), "rules") // not drinks: no item is wine and more than 5
	// Output: 2 rules
}

func ExamplePattern_Explain() {
	pattern, err := eventpattern.Parse([]byte(`{"source": ["shop"], "data": {"state": [{"exists": true}]}}`))
	if err != nil {
		log.Fatal(err)
	}
	explanation, err := pattern.Explain([]byte(`{"source": "till", "data": {}}`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(explanation.Match)
	for _, failure := range explanation.Failed {
		fmt.Println(failure.Pointer, failure.Cause)
	}
	// Output:
	// false
	// /data/state missing
	// /source different
}

func ExampleParse() {
	_, err := eventpattern.Parse([]byte(`{"source": [{"wildcard": "a**b"}]}`))
	fmt.Println(err)
	// Output: invalid pattern: /source/0/wildcard, offset 25: a wildcard has no consecutive *
}
