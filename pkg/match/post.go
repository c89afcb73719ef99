package match

// post is what a lookup finds: a number and two bits. With postSure, the value alone decides, and the number is the rule's. Without, it is that of a join
// that has to be checked. With postSole, the rule has no other post, and a value finds it once at most.
type post uint32

const (
	postSure post = 1 << iota
	postSole
	postShift = iota
)

// noPost is no number that an index reaches.
const noPost = ^post(0)

func makePost(number uint32, bits post) post { return post(number<<postShift) | bits }

func (p post) number() uint32 { return uint32(p >> postShift) }

// withoutPost returns the list without one occurrence. The list stays as it is: older snapshots may use it.
func withoutPost(list []post, p post) []post {
	for i := range list {
		if list[i] == p {
			out := make([]post, 0, len(list)-1)
			return append(append(out, list[:i]...), list[i+1:]...)
		}
	}
	return list
}
