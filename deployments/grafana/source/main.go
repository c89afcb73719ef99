// Command source writes the dashboards of Grafana, one for each service and one for Pulsar, as JSON
// files: go run . -to ..
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"path/filepath"
)

func main() {
	to := flag.String("to", "..", "folder of the JSON files")
	flag.Parse()
	for _, b := range []board{nightingale(), pigeonhole(), sonic(), eventbridge(), pulsar()} {
		if err := write(filepath.Join(*to, b.name+".json"), b); err != nil {
			log.Fatalf("%s: %v", b.name, err)
		}
	}
}

func write(path string, b board) error {
	built, err := b.build()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(built, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
