package schedule

// heldHeap orders held items by the time they are due.
type heldHeap []*Item

func (h heldHeap) Len() int           { return len(h) }
func (h heldHeap) Less(i, j int) bool { return h[i].Due.Before(h[j].Due) }
func (h heldHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heldAt, h[j].heldAt = i, j
}

func (h *heldHeap) Push(v any) {
	it, _ := v.(*Item) // container/heap passes its argument on
	it.heldAt = len(*h)
	*h = append(*h, it)
}

func (h *heldHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	it.heldAt = -1
	*h = old[:len(old)-1]
	return it
}
