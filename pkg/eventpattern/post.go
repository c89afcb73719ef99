package eventpattern

// post is an entry of a lookup: a number and two bits. With postSure the value alone decides that
// the rule matches, and the number is the rule's. Without postSure the number is that of a join,
// which the match must still check. With postSole the rule has no other post, and a value finds it
// at most once.
type post uint32

const (
	postSure post = 1 << iota
	postSole
	postShift = iota
)

// noPost is not a valid post: no index has so many numbers.
const noPost = ^post(0)

func makePost(number uint32, bits post) post { return post(number<<postShift) | bits }

func (p post) number() uint32 { return uint32(p >> postShift) }

// withoutPost returns a copy of the list without one occurrence of p. It does not change the list,
// because older snapshots may use it.
func withoutPost(list []post, p post) []post {
	for i := range list {
		if list[i] == p {
			out := make([]post, 0, len(list)-1)
			return append(append(out, list[:i]...), list[i+1:]...)
		}
	}
	return list
}
