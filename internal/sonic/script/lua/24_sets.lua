
write('SADD', function(c, args, key, policy)
	local n = #args
	local reply = run_sliced('SADD', key, args, 3, n)
	if failed(reply) or reply == 0 then return reply end
	return reply, elements_effect('A', policy, c.db, key, expiry_of(key), args, 3, n),
		added_versions(policy, c.db, key, 's', args, 3, n, 1)
end)

removes('SREM', 'SMISMEMBER', 'a')

write('SMOVE', function(c, args)
	local from, to = args[2], args[3]
	local pxat = expiry_of(from)
	local reply = run('SMOVE', args)
	if reply ~= 1 or from == to then return reply end
	local policy = policy_of(from)
	local effects, versions = removal_effect('a', policy, c.db, from, pxat, args, 4, 4)
	policy = policy_of(to)
	return reply, effects .. element_effect('A', policy, c.db, to, expiry_of(to), args[4]),
		added_versions(policy, c.db, to, 's', args, 4, 4, 1, versions)
end, {last = 3, frees = true})

-- SPOP key [count]. RESP3's reply with a count is a set.
write('SPOP', function(c, args, key, policy)
	local pxat = expiry_of(key)
	local reply = run('SPOP', args)
	if not reply or failed(reply) then return reply end
	local list = reply
	if #args == 2 then list = {reply} end
	if c.resp3 and #args > 2 then
		local set = {}
		for i = 1, #list do set[list[i]] = true end
		reply = {set = set}
	end
	if #list == 0 then return reply end
	return reply, removal_effect('a', policy, c.db, key, pxat, list, 1, #list)
end, {special = true, frees = true})

each({'SUNIONSTORE', 'SINTERSTORE', 'SDIFFSTORE'}, function(command)
	write(command, function(_, args) return stored(command, args, args[2]) end)
end)
