
-- sonic_overwrite db key..: what the keys hold here becomes what they hold in every zone, under a new version. The
-- reply is the entry's id, nil when there was nothing to say: state_effects has nothing of counters.
always('sonic_overwrite', 'ready', function(out, args)
	if c.alone then return false end
	local db, parts, versions = args[1], {}, nil
	call('SELECT', db)
	for i = 2, #args do parts[#parts + 1], versions = state_effects(db, args[i], versions) end
	local effects = concat(parts)
	return effects ~= '' and append(out, db, nil, effects, versions)
end)
