package resp

import "bufio"

// ReadReply reads exactly one reply, and keeps all of it in memory. It returns errors of in, and an
// error for input that is not a reply.
func ReadReply(in *bufio.Reader) ([]byte, error) {
	var scan Scanner
	var reply []byte
	for want := 1; ; {
		if _, err := in.Peek(want); err != nil {
			return nil, err
		}
		b, _ := in.Peek(in.Buffered())
		n, done, err := scan.Scan(b)
		if err != nil {
			return nil, err
		}
		reply = append(reply, b[:n]...)
		_, _ = in.Discard(n) // it is buffered
		if done {
			return reply, nil
		}
		want = len(b) - n + 1 // the rest ends within a line
	}
}
