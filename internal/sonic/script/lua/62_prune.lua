
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- sonic_beat appends a beat: the cursors of this zone. Others learn from it what they need not keep. It also answers
-- what others asked and still wait for.
always('sonic_beat', 'opened', function(out)
	if c.alone or c.clustered then return false end
	if shards.close_emptied(out) then return NOT_READY end
	if c.ready or #behind(out) == 0 then requests.send_deferred(out) end
	local cursors = call('HMGET', state(out, 'cur'), unpack(c.others))
	local effect = {'_', 'n', '0', ''}
	for i = 1, #c.others do
		effect[#effect + 1] = c.others[i]
		effect[#effect + 1] = cursors[i] or NO_ID
	end
	return append(out, '0', nil, cmsgpack.pack(effect))
end)

-- horizon returns the id that every zone's cursors are past: this zone's, and those of the others as their
-- beats reported them.
local function horizon(out)
	local lowest
	local function take(id)
		if not lowest or id_before(id, lowest) then lowest = id end
	end
	for i = 1, #c.others do
		local other = c.others[i]
		take(call('HGET', state(out, 'cur'), other) or NO_ID)
		local reported = state(out, 'reported')
		take(call('HGET', reported, other .. ' ' .. c.zone) or NO_ID)
		for j = 1, #c.others do
			if j ~= i then take(call('HGET', reported, other .. ' ' .. c.others[j]) or NO_ID) end
		end
	end
	return lowest or NO_ID
end

-- is_base tells whether operations may go on from a stored wholesale write: there still is the string, list or
-- stream.
local function is_base(field, stored)
	if not version.base(stored) then return false end
	local db, key = string.match(field, '^k(%d+):(.*)$')
	if try_db(db) then return false end
	local kind = kind_of(key)
	select_db('0')
	return IN_PLACE[kind] ~= nil
end

-- sonic_prune cursor count [horizon]: one step through the hash of versions. In a cluster horizon is the id that all
-- zones are past.
always('sonic_prune', 'opened', function(out, args)
	-- A primary of a cluster that came back older than it was gets effects from before the horizon again.
	if c.clustered and not c.ready then return NOT_READY end
	if c.clustered then shards.read_pruned(out) end
	local to = args[3] or horizon(out)
	if id_before(c.pruned.text, to) then
		set_pruned(to)
		if not c.clustered then call('HSET', state(out, 'meta'), 'pruned', to) end
	end
	if c.clustered then
		-- What a bootstrap has brought is past the horizon: nothing of it comes again.
		local filled_to = call('HGET', state(out, 'boot'), 'end')
		if filled_to and id_before(filled_to, to) then call('UNLINK', state(out, 'boot')) end
	end
	local hash = VERSION_HASH[out]
	local step = call('HSCAN', hash, args[1], 'COUNT', args[2])
	local fields, gone, wholes = step[2], {}, {}
	for i = 1, #fields, 2 do
		local forgotten
		local first = string.sub(fields[i], 1, 1)
		if c.alone then
			forgotten = true
		elseif first == 'x' then
			local flush = version.whole(hash, string.match(fields[i], '^x(%d+)'), nil)
			forgotten = not version.expiry_known(fields[i + 1]) or version.overtaken(fields[i + 1], flush)
		elseif first ~= 'f' then
			forgotten = not version.known(fields[i + 1])
		end
		if forgotten then
			local whole = first == 'k'
			if whole then wholes[#wholes + 1] = {'x' .. string.sub(fields[i], 2), fields[i + 1]} end
			if not whole or c.alone or not is_base(fields[i], fields[i + 1]) then gone[#gone + 1] = fields[i] end
		end
	end
	for i = 1, #wholes do
		local expiry = call('HGET', hash, wholes[i][1])
		if expiry and version.overtaken(expiry, wholes[i][2]) then gone[#gone + 1] = wholes[i][1] end
	end
	if c.clustered and #gone > 0 then call('HSET', state(out, 'meta'), 'pruned', c.pruned.text) end
	sliced('HDEL', hash, gone, 1, #gone)
	return {
		step[1], format('%d', #gone), format('%d', #fields / 2), format('%d', call('HLEN', hash)), c.pruned.text,
	}
end)

end
