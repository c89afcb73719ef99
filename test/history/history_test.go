package history_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/history"
)

func TestInOrder(t *testing.T) {
	for _, c := range []struct {
		name string
		seen []int
		err  string
	}{
		{"each once", []int{0, 1, 2}, ""},
		{"a repetition that is followed", []int{0, 1, 0, 1, 2, 1, 2}, ""},
		{"the same again", []int{0, 0, 1, 2, 2}, ""},
		{"a repetition that is not followed", []int{0, 1, 2, 0, 1}, "message 1 came last, the newest is 2"},
		{"a repetition followed in part", []int{0, 1, 2, 0, 2}, "message 2 came where message 1, or an older one, was expected"},
		{"overtaken", []int{0, 2, 1, 2}, "message 2 came where message 1, or an older one, was expected"},
		{"lost at the end", []int{0, 1}, "message 1 came last, the newest is 2"},
		{"nothing", nil, "message -1 came last, the newest is 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := history.InOrder(c.seen, 3)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, c.err)
			}
		})
	}
}

func kinds(vs []history.Violation) []history.Kind {
	var out []history.Kind
	for _, v := range vs {
		out = append(out, v.Kind)
	}
	return out
}

// done makes deliveries that follow one another.
func done(ids ...string) []history.Delivery {
	var out []history.Delivery
	for i, id := range ids {
		out = append(out, history.Delivery{ID: id, Start: 2*i + 1, End: 2*i + 2, Result: history.Done})
	}
	return out
}

func TestConsumed(t *testing.T) {
	log := []history.Message{{"a0", "a"}, {"b0", "b"}, {"a1", "a"}, {"x", ""}}
	with := func(ds []history.Delivery, change func(ds []history.Delivery)) []history.Delivery {
		change(ds)
		return ds
	}
	for _, c := range []struct {
		name string
		c    history.Consumed
		want []history.Kind
	}{
		{"all in order", history.Consumed{Deliveries: done("a0", "x", "a1", "b0"), Ordered: true}, nil},
		{"repeated as a whole", history.Consumed{Deliveries: done("a0", "a1", "b0", "x", "a0", "a1"), Ordered: true}, nil},
		{"without order nothing but the number counts", history.Consumed{Deliveries: done("a1", "a0", "b0", "x")}, nil},
		{"lost", history.Consumed{Deliveries: done("a0", "a1", "b0"), Ordered: true}, []history.Kind{history.Loss}},
		{"overtaken", history.Consumed{Deliveries: done("a1", "a0", "a1", "b0", "x"), Ordered: true}, []history.Kind{history.Overtaken, history.Gap}},
		{"stale end", history.Consumed{Deliveries: done("a0", "a1", "b0", "x", "a0"), Ordered: true}, []history.Kind{history.StaleEnd}},
		{"pinned", history.Consumed{Deliveries: done("a0", "a1", "b0", "x"), Backlog: 1}, []history.Kind{history.Pinned}},
		{"never sent", history.Consumed{Deliveries: done("a0", "a1", "b0", "x", "y")}, []history.Kind{history.Unknown}},
		{"a failure is not a success", history.Consumed{
			Deliveries: with(done("a0", "a1", "b0", "x"), func(ds []history.Delivery) { ds[2].Result = history.Failed }),
		}, []history.Kind{history.Loss}},
		{"a failed message is passed over", history.Consumed{
			Ordered:    true,
			Deliveries: with(done("a0", "a1", "a0", "a1", "b0", "x"), func(ds []history.Delivery) { ds[0].Result = history.Failed }),
		}, []history.Kind{history.Overtaken, history.Gap}},
		{"a failed message comes again", history.Consumed{
			Ordered:    true,
			Deliveries: with(done("a0", "a0", "a1", "b0", "x"), func(ds []history.Delivery) { ds[0].Result = history.Failed }),
		}, nil},
		{"attempts go on", history.Consumed{
			Attempts: true,
			Deliveries: with(done("a0", "a0", "a1", "b0", "x"), func(ds []history.Delivery) {
				ds[0].Result, ds[0].Attempt, ds[1].Attempt = history.Failed, 1, 2
			}),
		}, nil},
		{"attempts begin again", history.Consumed{
			Attempts: true,
			Deliveries: with(done("a0", "a0", "a1", "b0", "x"), func(ds []history.Delivery) {
				ds[0].Result, ds[0].Attempt, ds[1].Attempt = history.Failed, 2, 1
			}),
		}, []history.Kind{history.Forgotten}},
		{"a dead letter that is there", history.Consumed{
			Ordered: true, DeadLetters: map[string]bool{"a0": true},
			Deliveries: with(done("a0", "a1", "b0", "x"), func(ds []history.Delivery) { ds[0].Result = history.Dead }),
		}, nil},
		{"a dead letter that is not", history.Consumed{
			Ordered:    true,
			Deliveries: with(done("a0", "a1", "b0", "x"), func(ds []history.Delivery) { ds[0].Result = history.Dead }),
		}, []history.Kind{history.Loss}},
		{"what has lapsed does not count", history.Consumed{
			Ordered:    true,
			Deliveries: with(done("a0", "a1", "b0", "x", "a0"), func(ds []history.Delivery) { ds[4].Lapsed = true }),
		}, nil},
		{"a lapsed one may have been acknowledged", history.Consumed{
			Ordered:    true,
			Deliveries: with(done("a0", "a1", "b0", "x", "a0"), func(ds []history.Delivery) { ds[1].Lapsed = true }),
		}, nil},
		{"a stale end that may be", history.Consumed{
			Ordered: true, Loose: map[string]bool{"a": true}, Deliveries: done("a0", "a1", "b0", "x", "a0"),
		}, nil},
		{"two of a group at once", history.Consumed{
			Ordered:    true,
			Deliveries: with(done("a0", "a1", "b0", "x"), func(ds []history.Delivery) { ds[0].End, ds[1].Start, ds[1].End = 3, 2, 4 }),
		}, []history.Kind{history.Overtaken, history.Overlap}},
		{"two groups at once", history.Consumed{
			Ordered:    true,
			Deliveries: with(done("a0", "b0", "a1", "x"), func(ds []history.Delivery) { ds[0].End, ds[1].Start = 3, 2 }),
		}, nil},
		{"two groups at once where one is allowed", history.Consumed{
			Ordered: true, OneAtATime: true,
			Deliveries: with(done("a0", "b0", "a1", "x"), func(ds []history.Delivery) { ds[0].End, ds[1].Start = 3, 2 }),
		}, []history.Kind{history.Overlap}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.c.Log = log
			require.Equal(t, c.want, kinds(c.c.Check()), "%v", c.c.Check())
		})
	}
}

func TestPublished(t *testing.T) {
	records := func(fates ...history.Fate) []history.Record {
		var out []history.Record
		for i, f := range fates {
			out = append(out, history.Record{Stream: "p", N: i, Fate: f, Outcomes: 1})
		}
		return out
	}
	entries := func(ns ...int) []history.Entry {
		var out []history.Entry
		for _, n := range ns {
			out = append(out, history.Entry{Stream: "p", N: n, Partition: "0"})
		}
		return out
	}
	two := append(records(history.Stored, history.Perhaps), history.Record{Stream: "q", Fate: history.Stored, Outcomes: 1})
	const ok, perhaps, refused = history.Stored, history.Perhaps, history.Refused
	for _, c := range []struct {
		name string
		p    history.Published
		want []history.Kind
	}{
		{"each once", history.Published{Records: records(ok, ok), Log: entries(0, 1)}, nil},
		{"sent again", history.Published{Records: records(ok, ok, ok), Log: entries(0, 1, 0, 1, 2)}, nil},
		{"refused", history.Published{Records: records(ok, refused, ok), Log: entries(0, 2)}, nil},
		{"unknown and not stored", history.Published{Records: records(ok, perhaps, ok), Log: entries(0, 2)}, nil},
		{"unknown and stored", history.Published{Records: records(ok, perhaps, ok), Log: entries(0, 1, 2)}, nil},
		{"lost", history.Published{Records: records(ok, ok), Log: entries(0)}, []history.Kind{history.Loss}},
		{"overtaken", history.Published{Records: records(ok, ok), Log: entries(1, 0, 1)}, []history.Kind{history.Gap}},
		{"stale end", history.Published{Records: records(ok, ok), Log: entries(0, 1, 0)}, []history.Kind{history.StaleEnd}},
		{"refused and stored", history.Published{Records: records(ok, refused), Log: entries(0, 1)}, []history.Kind{history.Outcome}},
		{"no outcome", history.Published{Records: []history.Record{{Stream: "p"}}}, []history.Kind{history.Outcome}},
		{"two outcomes", history.Published{Records: []history.Record{{Stream: "p", Fate: ok, Outcomes: 2}}, Log: entries(0)}, []history.Kind{history.Outcome}},
		{"never sent", history.Published{Log: entries(0)}, []history.Kind{history.Unknown}},
		{"an owner follows another", history.Published{
			Exclusive: true, Records: two,
			Log: []history.Entry{{"p", 0, "0"}, {"p", 1, "0"}, {"q", 0, "0"}},
		}, nil},
		{"a former owner writes", history.Published{
			Exclusive: true, Records: two,
			Log: []history.Entry{{"p", 0, "0"}, {"q", 0, "0"}, {"p", 1, "0"}},
		}, []history.Kind{history.Owner}},
		{"two that share", history.Published{
			Records: two,
			Log:     []history.Entry{{"p", 0, "0"}, {"q", 0, "0"}, {"p", 1, "0"}},
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, kinds(c.p.Check()), "%v", c.p.Check())
		})
	}
}

func TestFollowed(t *testing.T) {
	for _, c := range []struct {
		name string
		seen []int
		err  string
	}{
		{"each once", []int{0, 1, 2}, ""},
		{"one that is kept while those before it are not", []int{1, 0, 1, 2}, ""},
		{"a repetition that is followed", []int{0, 1, 2, 1, 2}, ""},
		{"a repetition that is not followed", []int{0, 1, 2, 0, 1}, "message 1 came again and was not followed by message 2"},
		{"a repetition followed in part", []int{0, 1, 2, 0, 2}, "message 0 came again and was not followed by message 1"},
		{"lost", []int{0, 2}, "message 1 of 3 never came"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f history.Followed
			for _, n := range c.seen {
				f.See(n)
			}
			if err := f.End(3); c.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, c.err)
			}
		})
	}
}
