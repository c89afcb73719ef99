package resp

import "bufio"

// ReadReply reads exactly one reply, and keeps all of it in memory. It returns errors of in, and an
// error for input that is not a reply.
func ReadReply(in *bufio.Reader) ([]byte, error) {
	var scan Scanner
	var reply []byte
	for {
		if _, err := in.Peek(1); err != nil {
			return nil, err
		}
		b, err := in.Peek(in.Buffered())
		if err != nil {
			return nil, err
		}
		n, done, err := scan.Scan(b)
		if err != nil {
			return nil, err
		}
		reply = append(reply, b[:n]...)
		if _, err := in.Discard(n); err != nil {
			return nil, err
		}
		if done {
			return reply, nil
		}
		if n == 0 { // the buffer ends within a line
			if _, err := in.Peek(len(b) + 1); err != nil {
				return nil, err
			}
		}
	}
}
