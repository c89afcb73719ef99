package resp

import "bufio"

// ReadReply reads one reply, and no byte behind it. It keeps the whole reply in memory. The error is that of in, or says that this is no reply.
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
		if n == 0 { // a line that is not whole
			if _, err := in.Peek(len(b) + 1); err != nil {
				return nil, err
			}
		}
	}
}
