package api

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"

	"go.yaml.in/yaml/v3"
)

//go:embed openapi.yaml
var openAPIText []byte

// documentOf returns the OpenAPI document as JSON, with the binary's version.
func documentOf(version string) ([]byte, error) {
	var document map[string]any
	if err := yaml.Unmarshal(openAPIText, &document); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	if info, ok := document["info"].(map[string]any); ok && version != "" {
		info["version"] = version
	}
	return json.Marshal(document)
}

func (a *API) openAPI(w http.ResponseWriter, _ *http.Request) { send(w, http.StatusOK, a.document) }
