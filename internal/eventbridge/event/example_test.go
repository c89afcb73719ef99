package event_test

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
)

func ExampleParser_Structured() {
	var p event.Parser
	e, err := p.Structured([]byte(`{"data": {"total": 42}, "specversion": "1.0", "id": "A1", "source": "/shop", "type": "order.placed"}`), event.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.ID, e.Source, e.Type)
	fmt.Println(string(e.JSON))
	// Output:
	// A1 /shop order.placed
	// {"specversion":"1.0","id":"A1","source":"/shop","type":"order.placed","data":{"total":42}}
}

func ExampleError() {
	var p event.Parser
	_, err := p.Structured([]byte(`{"specversion":"1.0","id":"A1","id":"A2"}`), event.Options{})
	var fault *event.Error
	if errors.As(err, &fault) {
		fmt.Println(fault.Reason, fault.Offset)
		fmt.Println(fault)
	}
	// Output:
	// duplicate_key 31
	// offset 31: the key "id" occurs twice
}

func ExampleEvent_WriteBinary() {
	e, err := event.Decode([]byte(`{"specversion":"1.0","id":"A1","source":"/shop","type":"order.placed","subject":"Anna Müller","data":{"total":42}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	h := http.Header{}
	body, err := e.WriteBinary(h)
	fmt.Println(string(body), err)
	fmt.Println(h["Ce-Id"], h["Ce-Subject"], h["Content-Type"])
	// Output:
	// {"total":42} <nil>
	// [A1] [Anna%20M%C3%BCller] [application/json]
}

func ExamplePointer_Find() {
	p, err := event.ParsePointer("/data/items/0/sku")
	if err != nil {
		fmt.Println(err)
		return
	}
	value, found := p.Find([]byte(`{"data":{"items":[{"sku":"A-1"}]}}`))
	fmt.Println(string(value), found)
	// Output: "A-1" true
}
