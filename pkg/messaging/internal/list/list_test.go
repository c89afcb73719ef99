package list_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/list"
)

type item struct {
	links list.Links[item]
	n     int
}

func (i *item) Links() *list.Links[item] { return &i.links }

func TestList(t *testing.T) {
	var l list.List[item, *item]
	numbers := func() (out []int) {
		for e := l.Head(); e != nil; e = l.Next(e) {
			out = append(out, e.n)
		}
		return out
	}
	items := make([]*item, 6)
	for i := range items {
		items[i] = &item{n: i}
	}
	require.Nil(t, l.Head())
	for _, i := range items[:5] {
		l.Push(i)
	}
	require.Equal(t, []int{0, 1, 2, 3, 4}, numbers())
	l.Remove(items[2])
	l.Remove(items[0])
	l.Remove(items[4])
	require.Equal(t, []int{1, 3}, numbers())
	l.Swap(items[1], items[5])
	l.Push(items[0])
	l.Swap(items[0], items[4])
	require.Equal(t, []int{5, 3, 4}, numbers())
	for range 3 {
		l.Remove(l.Head())
	}
	require.Empty(t, numbers())
	l.Push(items[1])
	l.Swap(items[1], items[2])
	require.Equal(t, []int{2}, numbers())
}
